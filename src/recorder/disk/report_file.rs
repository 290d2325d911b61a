//! Reports on disk: JSON Lines in a folder.
//!
//! Invariants: the folder gets two files at most, of bounded size: the current one and the one before it; no other file
//! is touched; a line is either complete or absent.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;

use super::{DiskWriter, Writable, unread};
use crate::faults::{Faults, Reason, Source};
use crate::recorder::jobs::JobReport;

/// The file to which reports are appended, and the one before it.
const CURRENT: &str = "reports.jsonl";
const FORMER: &str = "reports.1.jsonl";
/// The permissions of a new file. Reports contain the names of users and jobs.
const MODE: u32 = 0o640;
/// How much of the end of the file is read when the exporter starts, in bytes.
const READ_BACK: u64 = 1 << 20;

/// Where reports are written, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportFileSettings {
    /// The folder. It must exist.
    pub path: PathBuf,
    /// The maximum size of both files together, in bytes.
    pub max_bytes: u64,
}

impl Writable for JobReport {
    const THREAD: &'static str = "report-writer";
    const KEY: &'static str = "recorder.reports-path";
    const WAITING: usize = 1024;

    fn title(&self) -> String {
        format!("report about {}", self.workload)
    }
}

/// Reads the latest reports from earlier runs, oldest first, at most `most` of them, and starts the writer.
///
/// # Errors
/// When the system cannot create a thread.
pub(crate) fn open(
    settings: ReportFileSettings,
    most: usize,
    faults: Arc<Faults>,
) -> io::Result<(DiskWriter<JobReport>, Vec<JobReport>)> {
    let folder = settings.path.clone();
    let earlier = read_back(&settings.path.join(CURRENT), most, &faults)
        .unwrap_or_else(|cause| unread("reports", &folder, cause, &faults));
    let writer = DiskWriter::start(folder, faults, move |report| append(&settings, report))?;
    Ok((writer, earlier))
}

/// Appends a report to the current file. If the file would become larger than half of the limit, it first becomes the
/// former one, and replaces the one that was.
fn append(settings: &ReportFileSettings, report: &JobReport) -> io::Result<()> {
    let path = settings.path.join(CURRENT);
    let mut line = serde_json::to_vec(report).map_err(io::Error::other)?;
    line.push(b'\n');
    let most = settings.max_bytes / 2;
    if line.len() as u64 > most {
        return Err(io::Error::other(format!(
            "it has {} bytes, more than half of recorder.reports-max-mib",
            line.len()
        )));
    }
    let (mut file, mut length) = open_for_lines(&path)?;
    if length + line.len() as u64 > most {
        drop(file);
        fs::rename(&path, settings.path.join(FORMER))?;
        (file, length) = open_for_lines(&path)?;
    }
    let written = file.write_all(&line).and_then(|()| file.sync_data());
    if written.is_err() {
        // A part of the line may have been written before the disk was full.
        let _ = file.set_len(length);
    }
    written
}

/// Opens a file of lines at its end, and returns its length. The rest of a line that was never completed, because the
/// machine went down, is removed.
fn open_for_lines(path: &Path) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(MODE).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is not a regular file", path.display())));
    }
    let length = file.metadata()?.len();
    let unfinished = unfinished(&mut file, length)?;
    if unfinished > 0 {
        file.set_len(length - unfinished)?;
    }
    Ok((file, length - unfinished))
}

/// The number of bytes after the last line of a file.
fn unfinished(file: &mut File, length: u64) -> io::Result<u64> {
    let mut last = [b'\n'];
    if length > 0 {
        file.seek(SeekFrom::Start(length - 1))?;
        file.read_exact(&mut last)?;
    }
    if last == [b'\n'] {
        return Ok(0);
    }
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BACK)))?;
    let mut end = Vec::new();
    file.take(READ_BACK).read_to_end(&mut end)?;
    Ok(end.iter().rev().take_while(|byte| **byte != b'\n').count() as u64)
}

/// The latest reports in a file, oldest first; none if there is no file in the folder.
fn read_back(path: &Path, most: usize, faults: &Faults) -> io::Result<Vec<JobReport>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(Path::is_dir) => {
            return Ok(Vec::new());
        }
        opened => opened?,
    };
    let begin = file.metadata()?.len().saturating_sub(READ_BACK);
    file.seek(SeekFrom::Start(begin))?;
    let mut text = Vec::new();
    file.take(READ_BACK).read_to_end(&mut text)?;
    // The first line may lack its beginning, and the last one its end.
    let lines = text.split_inclusive(|byte| *byte == b'\n').skip(usize::from(begin > 0));
    let lines: Vec<_> = lines.filter(|line| line.ends_with(b"\n")).collect();
    let latest = &lines[lines.len().saturating_sub(most)..];
    let reports: Vec<JobReport> = latest.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let lines = latest.len() - reports.len();
    if lines > 0 {
        let file = path.display();
        let foreign = "are not reports that this version can read; they are left as they are";
        faults.raise(Source::Recorder, Reason::Malformed, None, &*anyhow!("{lines} lines in {file} {foreign}"));
    }
    Ok(reports)
}

#[cfg(test)]
mod tests;
