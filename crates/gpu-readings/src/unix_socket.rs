//! Binds Unix sockets for the web server and for `allocator`.
//!
//! Invariants: a file that is not an abandoned socket is never removed; a socket file that was created here is removed
//! when its [`SocketFile`] is dropped. A socket is at its path only once its mode and group are set: it is made in a
//! folder that no other user may enter, so that nothing can take its place before then.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};

/// The pause after a failed accept, while the system is out of resources.
pub const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long to wait for an answer from a process that may be listening on the socket.
const PROBE: Duration = Duration::from_secs(1);

/// Who may connect: connecting requires write permission on the socket file, whatever the umask of the exporter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The permissions of the socket file.
    pub mode: u32,
    /// The group of the socket file; `None` keeps the group of the exporter.
    pub group: Option<u32>,
}

/// A socket file that was created here: its path, and its identity, because another file may be at that path by the
/// time the socket file is to be removed.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

/// Binds a path. Must be called within a runtime.
///
/// # Errors
/// When the path cannot be bound or the access cannot be set. A socket on which no process is listening any more is
/// replaced; any other file at the path is left alone and causes an error.
pub async fn bind(path: &Path, access: &Access) -> io::Result<(UnixListener, SocketFile)> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let only_own = Permissions::from_mode(0o700);
    // A short name, because the path of a socket has at most 107 bytes.
    let private = tempfile::Builder::new().prefix(".").permissions(only_own).tempdir_in(folder)?;
    remove_abandoned(path, private.path()).await?;
    let made = private.path().join("s");
    let socket = UnixListener::bind(&made)?;
    let created = SocketFile { path: path.to_owned(), identity: identity(&made) };
    if access.group.is_some() {
        chown(&made, None, access.group)?;
    }
    std::fs::set_permissions(&made, Permissions::from_mode(access.mode))?;
    // A link replaces no file, and a name in the private folder is removed with the folder.
    std::fs::hard_link(&made, path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => io::ErrorKind::AddrInUse.into(),
        _ => error,
    })?;
    Ok((socket, created))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // A failure does no harm, because the next exporter replaces an abandoned socket.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Device and inode of the file at a path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Removes the socket of an exporter that was killed, by way of the folder `private`. If a process is still listening,
/// binding fails later. The wait for a process that listens but does not accept connections is limited.
async fn remove_abandoned(path: &Path, private: &Path) -> io::Result<()> {
    let Ok(file) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !file.file_type().is_socket() {
        let why = "the file at this path is not a socket and is kept; remove it if it is not needed";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    match tokio::time::timeout(PROBE, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        _ => return Ok(()),
    }
    let aside = private.join("abandoned");
    std::fs::rename(path, &aside)?;
    if identity(&aside) != Some((file.dev(), file.ino())) {
        // Another exporter has replaced the abandoned socket since. Its socket gets its name back.
        std::fs::hard_link(&aside, path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const OPEN: Access = Access { mode: 0o666, group: None };

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn an_abandoned_socket_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (living, created) = bind(&path, &OPEN).await.unwrap();
        assert_eq!(mode(&path), 0o666);
        assert_eq!(bind(&path, &OPEN).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(living);
        drop(created);
        assert!(!path.exists(), "the file is removed at the end");
    }

    #[test]
    fn the_socket_is_never_at_its_path_with_another_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut seen = BTreeSet::new();
                while !over.load(Ordering::Relaxed) {
                    seen.extend(std::fs::symlink_metadata(&path).map(|file| file.permissions().mode() & 0o777));
                }
                seen
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            for _ in 0..2000 {
                let bound = runtime.block_on(bind(&path, &Access { mode: 0o622, group: None })).unwrap();
                drop(bound);
            }
            over.store(true, Ordering::Relaxed);
            let seen = watch.join().unwrap();
            assert!(seen.iter().all(|mode| *mode == 0o622), "{seen:?}");
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no private folder is left");
    }

    #[tokio::test]
    async fn another_file_is_kept_and_the_error_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        std::fs::write(&path, "precious").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for taken in [&path, &link] {
            let error = bind(taken, &OPEN).await.unwrap_err();
            assert!(error.kind() == io::ErrorKind::AddrInUse && error.to_string().contains("remove it"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_file_that_took_the_place_of_the_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let own_group = nix::unistd::getgid().as_raw();
        let (_socket, created) = bind(&path, &Access { mode: 0o600, group: Some(own_group) }).await.unwrap();
        assert_eq!(mode(&path), 0o600);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        drop(created);
        assert!(path.exists());
        std::fs::remove_file(&path).unwrap();
        // While the first socket is bound, the file of the second one has an inode of its own.
        let (_first, created) = bind(&path, &OPEN).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let (_second, _kept) = bind(&path, &OPEN).await.unwrap();
        drop(created);
        assert!(path.exists());
    }
}
