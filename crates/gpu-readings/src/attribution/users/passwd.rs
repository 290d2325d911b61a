//! User names from a file in the format of `/etc/passwd`, for an exporter whose own name service cannot resolve the
//! users of the processes (for example in a container with the host's file mounted).

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use crate::attribution::directory::read_bounded;
use crate::faults::{Faults, Reason, Source};

/// The shortest time between two checks for a change to the file.
const LOOK: Duration = Duration::from_secs(10);
/// In bytes: far larger than any real passwd file.
const LIMIT: u64 = 16 * 1024 * 1024;

/// The users in the file, read again when it has changed.
#[derive(Debug)]
pub(crate) struct Passwd {
    path: PathBuf,
    looked: Option<Instant>,
    version: Option<Version>,
    names: HashMap<u32, String>,
}

/// Changes when the file is written or replaced.
type Version = (Option<SystemTime>, u64);

#[derive(Debug, thiserror::Error)]
enum PasswdError {
    #[error("cannot read the user names in {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} holds more than {LIMIT} bytes: give a smaller file with --path.passwd", path.display())]
    TooLarge { path: PathBuf },
}

impl Passwd {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, looked: None, version: None, names: HashMap::new() }
    }

    pub(crate) fn name(&mut self, uid: u32, now: Instant, faults: &Faults) -> Option<&str> {
        if self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK) {
            self.looked = Some(now);
            if let Err(error) = self.look() {
                // Names from a file that no longer exists may be outdated.
                (self.version, self.names) = (None, HashMap::new());
                faults.raise(Source::Attribution, Reason::UserUnknown, None, &error);
            }
        }
        self.names.get(&uid).map(String::as_str)
    }

    fn look(&mut self) -> Result<(), PasswdError> {
        let io = |source| PasswdError::Io { path: self.path.clone(), source };
        let file = File::open(&self.path).map_err(io)?;
        let found = version(&file.metadata().map_err(io)?);
        if self.version == Some(found) {
            return Ok(());
        }
        let bytes = read_bounded(file, LIMIT + 1).map_err(io)?;
        if bytes.len() as u64 > LIMIT {
            return Err(PasswdError::TooLarge { path: self.path.clone() });
        }
        self.names = parse(&bytes);
        self.version = Some(found);
        Ok(())
    }
}

fn version(metadata: &Metadata) -> Version {
    (metadata.modified().ok(), metadata.len())
}

/// The names by uid. If several lines have the same uid, the first one counts, as in the C library. Malformed lines are
/// skipped.
pub fn parse(bytes: &[u8]) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in bytes.split(|&b| b == b'\n') {
        let mut fields = line.split(|&b| b == b':');
        let (Some(name), Some(_password), Some(uid)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let uid = std::str::from_utf8(uid).ok().and_then(|uid| uid.parse::<u32>().ok());
        if let (Some(uid), false) = (uid, name.is_empty() || name.starts_with(b"#")) {
            names.entry(uid).or_insert_with(|| String::from_utf8_lossy(name).into_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_lines_are_skipped() {
        let names = parse(
            b"root:x:0:0:root:/root:/bin/sh\n\n# a note:x:5\nshort:x\n:x:7:7\nbad:x:many:1\nneg:x:-1:1\nbig:x:4294967296:1\n\
              ann:x:1000:1000\nother:x:1000:1000\nb\xff:x:1001:1\n+nis::::::\nlast:x:1002",
        );
        let mut found: Vec<_> = names.iter().map(|(uid, name)| (*uid, name.as_str())).collect();
        found.sort_unstable();
        assert_eq!(found, [(0, "root"), (1000, "ann"), (1001, "b\u{fffd}"), (1002, "last")]);
    }

    #[test]
    fn a_changed_file_is_read_again_after_ten_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwd");
        let faults = Faults::default();
        let unknown = || faults.count(Source::Attribution, Reason::UserUnknown);
        let start = Instant::now();
        let mut passwd = Passwd::new(path.clone());
        assert_eq!(passwd.name(7, start, &faults), None);
        assert_eq!(unknown(), 1);

        std::fs::write(&path, "ann:x:7:7\n").unwrap();
        assert_eq!(passwd.name(7, start + Duration::from_secs(9), &faults), None);
        assert_eq!(passwd.name(7, start + Duration::from_secs(10), &faults), Some("ann"));

        std::fs::write(&path, "barbara:x:7:7\n").unwrap();
        assert_eq!(passwd.name(7, start + Duration::from_secs(19), &faults), Some("ann"));
        assert_eq!(passwd.name(7, start + Duration::from_secs(20), &faults), Some("barbara"));
        assert_eq!(passwd.name(8, start + Duration::from_secs(20), &faults), None);
        assert_eq!(unknown(), 1, "a user without a name is no fault");

        std::fs::remove_file(&path).unwrap();
        assert_eq!(passwd.name(7, start + Duration::from_secs(30), &faults), None);
        assert_eq!(unknown(), 2);
    }

    #[test]
    fn a_file_beyond_the_limit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwd");
        std::fs::write(&path, "ann:x:7:7\n").unwrap();
        File::options().append(true).open(&path).unwrap().set_len(LIMIT + 1).unwrap();
        let faults = Faults::default();
        assert_eq!(Passwd::new(path).name(7, Instant::now(), &faults), None);
        assert_eq!(faults.count(Source::Attribution, Reason::UserUnknown), 1);
    }
}
