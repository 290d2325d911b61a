//! Where the report goes: standard error, or a file.
//!
//! Invariant: a file that cannot be written is refused before the command starts, and a reader never sees half a
//! report, because the report is written to a temporary file in the same folder, which is then renamed.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::NamedTempFile;

/// The permissions of a new report.
const MODE: u32 = 0o644;

/// The destination of the report.
#[derive(Debug)]
pub(super) enum Output {
    StandardError,
    File { aside: NamedTempFile, path: PathBuf },
}

impl Output {
    /// Prepares the destination.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub(super) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::StandardError) };
        let refused = || format!("--output: {} cannot be written", path.display());
        // A folder or a device cannot be replaced by a file.
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) || path.file_name().is_none() {
            bail!("--output: {} is not a regular file", path.display());
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        let aside = builder.prefix(".vram-run-").permissions(Permissions::from_mode(MODE)).tempfile_in(folder);
        Ok(Self::File { aside: aside.with_context(refused)?, path: path.to_owned() })
    }

    /// Writes the report.
    ///
    /// # Errors
    /// When the file cannot be written, for example because the disk is full.
    pub(super) fn write(self, report: &str) -> Result<()> {
        match self {
            // If standard error is closed, nothing is left to write to.
            Self::StandardError => drop(io::stderr().lock().write_all(report.as_bytes())),
            Self::File { mut aside, path } => {
                let refused = || format!("the report could not be written to {}", path.display());
                aside.write_all(report.as_bytes()).with_context(refused)?;
                aside.persist(&path).with_context(refused)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_an_older_one_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        fs::write(&path, "an older and longer report").unwrap();
        let output = Output::open(Some(&path)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "an older and longer report");
        output.write("new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_place_that_cannot_hold_a_report_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().join("none/report"), folder.path().to_owned(), "/dev/null".into(), "/".into()] {
            assert!(Output::open(Some(&path)).is_err(), "{}", path.display());
        }
    }
}
