//! The socket on which the processes of the command report about their memory allocators, and the variables that pass
//! them its path.
//!
//! Invariant: the socket is in a folder that only this user may enter, and the folder is removed at the end. A socket
//! that the command would report to without `run` stays in the list.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpu_readings::allocator::{Allocator, Listener, Outcomes, Settings, StartTicks};
use gpu_readings::faults::{Faults, Source};
use gpu_readings::snapshot::{CallFeed, Feed, Snapshot};
use nix::unistd::mkdtemp;
use parking_lot::Mutex;

use super::names::Names;
use super::record::Membership;
use super::reported::Reported;

/// Starts the Python client in each Python process that has it installed.
const ARM: &str = "VRAM_EXPORTER_ARM";
/// The sockets to which a client reports, separated by colons.
const SOCKETS: &str = "VRAM_EXPORTER_SOCKET";
/// Where a client reports if the variable is not set.
const DEFAULT: &str = "/run/vram-exporter/allocator.sock";
/// The time limit for reading what processes sent before they ended.
const READING: Duration = Duration::from_secs(2);
/// The same limit if processes of the command are still running, because their connections stay open.
const READING_WHILE_OPEN: Duration = Duration::from_millis(200);

/// The socket and what has been reported on it.
#[derive(Debug)]
pub(super) struct Socket {
    allocator: Allocator,
    path: PathBuf,
    reported: Arc<Mutex<Reported>>,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    _folder: Folder,
}

impl Socket {
    /// Binds the socket in a new folder and accepts connections. Must be called within a runtime.
    ///
    /// # Errors
    /// When the socket cannot be created, neither in `$XDG_RUNTIME_DIR` nor in the folder for temporary files.
    pub(super) async fn open(names: Names) -> Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let mut bound = Err(anyhow::Error::msg("there is no folder for it"));
        for folder in runtime.into_iter().chain([std::env::temp_dir()]) {
            bound = bind(&folder).await.with_context(|| format!("no socket in {}", folder.display()));
            if bound.is_ok() {
                break;
            }
        }
        let (folder, listener) = bound?;
        let path = listener.path().to_owned();
        let (reported, faults) = (Arc::new(Mutex::new(Reported::default())), Arc::new(Faults::default()));
        let taking = reported.clone();
        let settings = Settings {
            // The window peak is not shown, nor are call sites.
            peak_window: Duration::from_secs(1),
            sites: false,
            start_ticks: members(names),
            outcomes: Some(Outcomes::new(move |outcomes| taking.lock().add(outcomes))),
        };
        // The feed keeps the latest failed allocations until the end. Nothing else is written to it here.
        let snapshot = Snapshot::recorded(Feed::with_room(1), CallFeed::default());
        let allocator = Allocator::start(listener, settings, snapshot.clone(), faults.clone());
        Ok(Self { allocator, path, reported, snapshot, faults, _folder: folder })
    }

    /// The variables for the command.
    pub(super) fn variables(&self) -> Vec<(&'static str, OsString)> {
        variables(&self.path, std::env::var_os(SOCKETS), std::env::var_os(ARM))
    }

    /// Closes the socket. Returns what was reported, including the last messages of processes that have ended. `open`:
    /// whether processes of the command are still running.
    pub(super) async fn finish(self, open: bool) -> Reported {
        self.allocator.finish(if open { READING_WHILE_OPEN } else { READING }).await;
        let mut reported = std::mem::take(&mut *self.reported.lock());
        let failures = std::iter::from_fn(|| self.snapshot.feed.next_failure()).collect();
        let refused = self.faults.counts().filter(|(source, _, count)| *source == Source::Allocator && *count > 0);
        reported.end(failures, refused.map(|(_, reason, count)| (reason.label(), count)).collect());
        reported
    }
}

/// A folder that is removed in the end, with the socket in it.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    /// The path of the socket.
    fn socket(&self) -> PathBuf {
        self.0.join("sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If that fails, nothing is left but an empty folder, or one in which the command has put something.
        let _ = std::fs::remove_file(self.socket());
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A folder of this user, with mode 0700, and a socket in it.
async fn bind(within: &Path) -> Result<(Folder, Listener)> {
    ensure!(!within.as_os_str().as_bytes().contains(&b':'), "a colon would end the path in a list of sockets");
    let folder = Folder(mkdtemp(&within.join("vram-run-XXXXXX"))?);
    let listener = Listener::bind(&folder.socket(), 0o600, None).await?;
    Ok((folder, listener))
}

/// Reads the start times of the command's processes. A process that the command did not start is unknown. One
/// whose ancestors can no longer be looked up belongs to the command, because no other process was given the path of the
/// socket.
fn members(names: Names) -> StartTicks {
    StartTicks::new(move |pid| {
        let found = names.find(pid, Instant::now());
        (found.membership != Membership::Other).then_some(found.key)
    })
}

/// The variables for a command that inherits these values. The client is not started if the user has switched it off.
fn variables(own: &Path, sockets: Option<OsString>, arm: Option<OsString>) -> Vec<(&'static str, OsString)> {
    let mut list = own.as_os_str().to_owned();
    list.push(":");
    list.push(sockets.filter(|sockets| !sockets.is_empty()).unwrap_or_else(|| DEFAULT.into()));
    let mut variables = vec![(SOCKETS, list)];
    if arm.as_deref() != Some(OsStr::new("0")) {
        variables.push((ARM, "1".into()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_sockets_that_the_command_inherits_stay_in_the_list() {
        let of = |sockets: Option<&str>, arm: Option<&str>| {
            variables(Path::new("/run/user/0/s"), sockets.map(Into::into), arm.map(Into::into))
        };
        let list = |list: &str| (SOCKETS, OsString::from(list));
        let armed = (ARM, OsString::from("1"));
        assert_eq!(of(None, None), [list("/run/user/0/s:/run/vram-exporter/allocator.sock"), armed.clone()]);
        assert_eq!(of(Some(""), Some("")), [list("/run/user/0/s:/run/vram-exporter/allocator.sock"), armed.clone()]);
        assert_eq!(of(Some("/a:/b"), Some("1")), [list("/run/user/0/s:/a:/b"), armed]);
        assert_eq!(of(Some("/a"), Some("0")), [list("/run/user/0/s:/a")]);
    }

    #[tokio::test]
    async fn only_this_user_may_enter_the_folder_and_it_is_removed() {
        let within = tempfile::tempdir().unwrap();
        let (folder, listener) = bind(within.path()).await.unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder.0), mode(listener.path())), (0o700, 0o600));
        drop((folder, listener));
        assert_eq!(std::fs::read_dir(within.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_folder_that_cannot_hold_the_socket_is_refused_and_stays_empty() {
        let within = tempfile::tempdir().unwrap();
        for name in ["a:b".to_owned(), "x".repeat(120)] {
            let folder = within.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            assert!(bind(&folder).await.is_err());
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        }
    }
}
