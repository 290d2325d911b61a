//! The limit on open files and sockets.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Enough for every process directory that is kept open and every connection that the web server accepts by default.
const WANTED: u64 = 65_536;

/// Twice what 16 GPUs with 512 processes each need.
const MOST_DIRECTORIES: u64 = 16_384;

/// Raises the limit as far as the system allows and the exporter needs: the usual limit is 1024, for the sake of old
/// programs. If the system refuses, the exporter runs with the limit that it has.
pub(super) fn raise() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let wanted = hard.min(WANTED);
        if soft < wanted { setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::debug!(error = %error, "open files: the limit is not raised");
    }
}

/// How many process directories may be kept open. Call it after [`raise`].
pub(super) fn for_directories() -> usize {
    share(getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft))
}

/// Half of the limit is for everything else.
fn share(granted: u64) -> usize {
    (granted / 2).min(MOST_DIRECTORIES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_get_half_of_the_open_files_up_to_a_maximum() {
        assert_eq!([0, 1, 64, 1024].map(share), [0, 0, 32, 512]);
        assert_eq!([32_767, 32_768, WANTED, u64::MAX].map(share), [16_383, 16_384, 16_384, 16_384]);
    }

    #[test]
    fn the_raised_limit_is_shared() {
        raise();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert!(soft >= hard.min(WANTED));
        assert_eq!(for_directories(), share(soft));
    }
}
