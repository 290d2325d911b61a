//! Reads a file that an administrator names, such as one with headers or certificates.
//!
//! Invariant: only a regular file of limited length is read. A pipe, a device or a folder is an error, and opening one never
//! blocks.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Reads a file of at most `limit` bytes. May block for a long time, for example on a dead mount.
///
/// # Errors
/// When the file cannot be read, is not a regular file or a link to one, or is longer than `limit`.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Before it is opened, because opening some devices has an effect.
    check(&std::fs::metadata(path)?)?;
    // And again, because another file may be there by now. The flag keeps a pipe without a writer from blocking.
    let file: File = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    check(&file.metadata()?)?;
    let mut content = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    match u64::try_from(content.len()) {
        Ok(length) if length <= limit => Ok(content),
        _ => Err(invalid(format!("the file is longer than {limit} bytes"))),
    }
}

fn check(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() { Ok(()) } else { Err(invalid("it is not a regular file".to_owned())) }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_a_regular_file_of_limited_length_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, pipe) = (folder.path().join("file"), folder.path().join("link"), folder.path().join("pipe"));
        std::fs::write(&file, "12345").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&file, &link] {
            assert_eq!(read(path, 5).unwrap(), b"12345");
            assert_eq!(read(path, 4).unwrap_err().to_string(), "the file is longer than 4 bytes");
        }
        for path in [folder.path(), &pipe, Path::new("/dev/zero")] {
            assert_eq!(read(path, 5).unwrap_err().to_string(), "it is not a regular file", "{}", path.display());
        }
        assert_eq!(read(&folder.path().join("none"), 5).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
