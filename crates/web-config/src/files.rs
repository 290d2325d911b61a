//! Reads the web-config file and the files that it names, and detects when their contents change.
//!
//! Invariant: a read is bounded in size and opens regular files only. The contents are compared, not the
//! modification times, because Kubernetes updates a secret by replacing a symlink.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use ring::digest::{Context, Digest, SHA256};

use super::error::{Problem, display_path};

/// The largest file that is read. A bundle of all public CAs is about 250 KiB.
const MAX_BYTES: u64 = 1024 * 1024;

/// Reads files and remembers what they contained, in order.
pub(super) struct FileReader {
    files: Vec<PathBuf>,
    digest: Context,
}

impl FileReader {
    pub(super) fn new() -> Self {
        Self { files: Vec::new(), digest: Context::new(&SHA256) }
    }

    /// Reads a file and adds it to the fingerprint.
    pub(super) fn read(&mut self, file: &Path) -> Result<Vec<u8>, Problem> {
        let content = read(file);
        self.files.push(file.to_owned());
        update(&mut self.digest, &content);
        content
    }

    /// Reads a file that the value of `key` names.
    pub(super) fn read_named(&mut self, key: &str, file: &Path) -> Result<Vec<u8>, Problem> {
        let named = |why| Problem::Named { key: key.to_owned(), file: display_path(file), why: Box::new(why) };
        self.read(file).map_err(named)
    }

    pub(super) fn finish(self) -> Fingerprint {
        Fingerprint { files: self.files, digest: self.digest.finish() }
    }
}

/// The files that were read, and a digest of their contents.
pub(super) struct Fingerprint {
    files: Vec<PathBuf>,
    digest: Digest,
}

impl Fingerprint {
    /// Whether the files still have the same contents.
    pub(super) fn is_current(&self) -> bool {
        let mut digest = Context::new(&SHA256);
        for file in &self.files {
            update(&mut digest, &read(file));
        }
        digest.finish().as_ref() == self.digest.as_ref()
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Problem> {
    // Checked before the file is opened, because opening a FIFO would wait for a writer.
    if !fs::metadata(file).map_err(Problem::Unreadable)?.is_file() {
        return Err(Problem::Unsuitable("is not a regular file"));
    }
    let mut bytes = Vec::new();
    let open = File::open(file).map_err(Problem::Unreadable)?;
    open.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(Problem::Unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Problem::Unsuitable("is larger than 1 MiB"));
    }
    Ok(bytes)
}

/// Adds contents to a digest. The length precedes the bytes, so that moving bytes from one file to the next
/// changes the digest.
fn update(digest: &mut Context, content: &Result<Vec<u8>, Problem>) {
    match content {
        Ok(bytes) => {
            digest.update(&(bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        }
        Err(_) => digest.update(&u64::MAX.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_detected_through_a_replaced_symlink() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("old"), "a").unwrap();
        fs::write(at("new"), "b").unwrap();
        std::os::unix::fs::symlink(at("old"), at("link")).unwrap();
        let mut files = FileReader::new();
        assert_eq!(files.read(&at("link")).unwrap(), b"a");
        let fingerprint = files.finish();
        assert!(fingerprint.is_current());
        fs::remove_file(at("link")).unwrap();
        assert!(!fingerprint.is_current(), "a missing file is a change");
        std::os::unix::fs::symlink(at("new"), at("link")).unwrap();
        assert!(!fingerprint.is_current());
        fs::write(at("new"), "a").unwrap();
        assert!(fingerprint.is_current());
    }

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap_err().to_string(), "is not a regular file");
        assert_eq!(read(Path::new("/dev/zero")).unwrap_err().to_string(), "is not a regular file");
        let large = folder.path().join("large");
        File::create(&large).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert_eq!(read(&large).unwrap_err().to_string(), "is larger than 1 MiB");
    }
}
