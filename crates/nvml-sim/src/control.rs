//! The control file: what is added to the scenario while the machine runs.
//!
//! An entry without a time starts when it first appears in the file, and keeps that start time while the rest
//! of the file changes.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::clock::Nanos;
use crate::scenario::grammar::Control;
use crate::scenario::{Problem, parse};

/// The file's content with the times at which its entries appeared.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    pub(crate) file: String,
    pub(crate) control: Control,
    pub(crate) process_since: Vec<Nanos>,
    pub(crate) xid_since: Vec<Nanos>,
    pub(crate) fault_since: Vec<Nanos>,
}

/// Watches the file.
#[derive(Debug)]
pub(crate) struct Watch {
    path: PathBuf,
    seen: Option<Stamp>,
    pub(crate) overlay: Option<Overlay>,
}

/// What changes when a file is written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        Some(Self { inode: meta.ino(), size: meta.size(), modified: (meta.mtime(), meta.mtime_nsec()) })
    }
}

impl Watch {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, seen: None, overlay: None }
    }

    /// Reads the file if it has changed. Returns whether the overlay has changed.
    ///
    /// # Errors
    /// What is wrong with the file; the overlay stays as it was, and the same content is not reported again.
    pub(crate) fn refresh(&mut self, now: Nanos) -> Result<bool, Problem> {
        let stamp = Stamp::of(&self.path);
        if stamp == self.seen {
            return Ok(false);
        }
        self.seen = stamp;
        let Some(_) = stamp else {
            return Ok(self.overlay.take().is_some());
        };
        let file = self.path.display().to_string();
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            // Removed between the two checks; the next check detects it.
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(cause) => return Err(Problem::Unreadable { file, cause }),
        };
        let control = parse(&file, &text)?;
        self.overlay = Some(self.timed(file, control, now));
        Ok(true)
    }

    fn timed(&self, file: String, control: Control, now: Nanos) -> Overlay {
        let before = self.overlay.as_ref();
        let process_since = since(&control.process, before.map(|o| (&o.control.process, &o.process_since)), now);
        let xid_since = since(&control.xid, before.map(|o| (&o.control.xid, &o.xid_since)), now);
        let fault_since = since(&control.fault, before.map(|o| (&o.control.fault, &o.fault_since)), now);
        Overlay { file, control, process_since, xid_since, fault_since }
    }
}

/// When each entry first appeared in the file.
fn since<T: PartialEq>(entries: &[T], before: Option<(&Vec<T>, &Vec<Nanos>)>, now: Nanos) -> Vec<Nanos> {
    let known = |entry: &T| {
        let (entries, times) = before?;
        entries.iter().position(|known| known == entry).map(|at| times[at])
    };
    entries.iter().map(|entry| known(entry).unwrap_or(now)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_its_time_while_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.toml");
        let mut watch = Watch::new(path.clone());
        assert!(!watch.refresh(1).unwrap());
        std::fs::write(&path, "[[xid]]\ncode = 31\n").unwrap();
        assert!(watch.refresh(2).unwrap());
        assert!(!watch.refresh(3).unwrap());
        std::fs::write(&path, "[[xid]]\ncode = 43\n[[xid]]\ncode = 31\n").unwrap();
        assert!(watch.refresh(4).unwrap());
        assert_eq!(watch.overlay.as_ref().unwrap().xid_since, [4, 2]);
        std::fs::write(&path, "[[xid]]\nkode = 31\n").unwrap();
        let problem = watch.refresh(5).unwrap_err().to_string();
        assert!(problem.contains("kode") && problem.contains("control.toml"), "{problem}");
        assert_eq!(watch.overlay.as_ref().unwrap().xid_since, [4, 2]);
        assert!(!watch.refresh(6).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(watch.refresh(7).unwrap());
        assert!(watch.overlay.is_none());
    }
}
