//! How many files and sockets the exporter may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Enough for every process directory that is held and every connection that the web server takes by default.
const WANTED: u64 = 65_536;

/// Twice what 16 GPUs with 512 processes each need.
const MOST_DIRECTORIES: u64 = 16_384;

/// Takes as many as the system allows, up to what can be of use: what a shell grants at first is 1024, for the sake of old
/// programs. Where it is refused the exporter runs with what there is.
pub(super) fn take() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let wanted = hard.min(WANTED);
        if soft < wanted { setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::debug!(error = %error, "the limit of open files stays as it is");
    }
}

/// How many directories of processes may be held open. To be asked for after [`take`].
pub(super) fn for_directories() -> usize {
    share(getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft))
}

/// Half of what is granted is for everything else.
fn share(granted: u64) -> usize {
    (granted / 2).min(MOST_DIRECTORIES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_open_files_are_for_directories_up_to_what_can_be_of_use() {
        assert_eq!([0, 1, 64, 1024].map(share), [0, 0, 32, 512]);
        assert_eq!([32_767, 32_768, WANTED, u64::MAX].map(share), [16_383, 16_384, 16_384, 16_384]);
    }

    #[test]
    fn what_was_taken_is_shared() {
        take();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert!(soft >= hard.min(WANTED));
        assert_eq!(for_directories(), share(soft));
    }
}
