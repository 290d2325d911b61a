//! How many files and sockets the exporter may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Enough for every process directory that the lanes hold and every connection that the web server takes.
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

/// How many directories of processes may be held open: half of what is granted is for everything else.
pub(super) fn for_directories() -> usize {
    let granted = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    (granted / 2).min(MOST_DIRECTORIES) as usize
}
