//! Incidents on disk: a folder with one file for each, and a thread that writes them.
//!
//! Invariants: a file is either complete or absent, because it is written under another name and then renamed; the
//! folder holds a bounded number of files and bytes, and the oldest files are removed first; only files with the names
//! of incidents are ever touched. A full or slow disk delays nothing. Only incidents can be lost because of it, and
//! each lost incident is counted as a fault.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use super::incident::{Incident, VERSION};
use crate::faults::{Faults, Reason, Source};

/// The beginning and the end of a file's name.
const PREFIX: &str = "incident-";
const SUFFIX: &str = ".json";
/// The end of the name of a file that is being written.
const PARTIAL: &str = ".json.partial";
/// The number of incidents that may wait for the disk.
const WAITING: usize = 16;
/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Where incidents are kept, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// The folder. It must exist.
    pub path: PathBuf,
    /// The maximum number of files.
    pub max_files: usize,
    /// The maximum size of all files together, in bytes.
    pub max_bytes: u64,
}

/// The writer's thread, and the queue of incidents for it.
#[derive(Debug)]
pub(super) struct Store {
    queue: SyncSender<Arc<Incident>>,
    faults: Arc<Faults>,
    thread: JoinHandle<()>,
}

/// Why an incident was not written.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("the incident {id} could not be written to {}; check recorder.path and its free space", folder.display())]
    Unwritten {
        id: String,
        folder: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the incident {id} was not written: {WAITING} others are waiting for the disk")]
    Slow { id: String },
    #[error("the incidents of earlier runs in {} could not be read", folder.display())]
    Folder {
        folder: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} is not an incident that this version can read; it is left as it is", file.display())]
    Foreign {
        file: PathBuf,
        #[source]
        cause: io::Error,
    },
}

impl Store {
    /// Reads the latest incidents from earlier runs, oldest first, and starts the writer.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub(super) fn open(settings: StoreSettings, most: usize, faults: Arc<Faults>) -> io::Result<(Self, Vec<Incident>)> {
        let earlier = Folder(&settings).read(most, &faults);
        let (queue, waiting) = sync_channel(WAITING);
        let reports = faults.clone();
        let work = move || write_all(&settings, &waiting, &reports);
        let thread = std::thread::Builder::new().name("incident-writer".into()).spawn(work)?;
        Ok((Self { queue, faults, thread }, earlier))
    }

    /// Passes an incident to the writer. Never waits: if too many are waiting, this one is lost.
    pub(super) fn write(&self, incident: &Arc<Incident>) {
        if let Err(TrySendError::Full(incident) | TrySendError::Disconnected(incident)) =
            self.queue.try_send(incident.clone())
        {
            self.faults.report(Source::Recorder, Reason::Overloaded, None, &Lost::Slow { id: incident.id.clone() });
        }
    }

    /// Waits until everything has been written.
    pub(super) fn close(self) {
        drop(self.queue);
        if self.thread.join().is_err() {
            tracing::error!("the incident writer panicked");
        }
    }
}

fn write_all(settings: &StoreSettings, waiting: &Receiver<Arc<Incident>>, faults: &Faults) {
    let folder = Folder(settings);
    while let Ok(incident) = waiting.recv() {
        if let Err(cause) = folder.write(&incident) {
            let lost = Lost::Unwritten { id: incident.id.clone(), folder: settings.path.clone(), cause };
            faults.report(Source::Recorder, Reason::Unwritable, None, &lost);
        }
    }
}

/// The folder with its limits.
struct Folder<'s>(&'s StoreSettings);

impl Folder<'_> {
    fn write(&self, incident: &Incident) -> io::Result<()> {
        let text = serde_json::to_vec(incident).map_err(io::Error::other)?;
        let whole = self.0.path.join(format!("{PREFIX}{}{SUFFIX}", incident.id));
        self.make_room(text.len() as u64, &whole)?;
        // The partial file is removed if anything fails before it is renamed.
        let mut partial = tempfile::Builder::new().prefix(PREFIX).suffix(PARTIAL).tempfile_in(&self.0.path)?;
        partial.write_all(&text)?;
        partial.as_file().sync_all()?;
        partial.persist(whole)?;
        Ok(())
    }

    /// Removes the oldest files until a new file of this size fits. A file that the new one replaces does not count.
    fn make_room(&self, bytes: u64, replaced: &Path) -> io::Result<()> {
        let mut files = self.files(SUFFIX)?;
        files.retain(|(path, _)| path != replaced);
        let mut total: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        let mut count = files.len();
        for (path, size) in files {
            if count < self.0.max_files && total.saturating_add(bytes) <= self.0.max_bytes {
                break;
            }
            fs::remove_file(path)?;
            total -= size;
            count -= 1;
        }
        match bytes > self.0.max_bytes {
            true => Err(io::Error::other(format!("it has {bytes} bytes, more than recorder.max-disk-mib allows"))),
            false => Ok(()),
        }
    }

    /// The latest incidents, oldest first. Files that a crash left unfinished are removed.
    fn read(&self, most: usize, faults: &Faults) -> Vec<Incident> {
        let unfinished = self.files(PARTIAL).unwrap_or_default();
        unfinished.iter().for_each(|(path, _)| drop(fs::remove_file(path)));
        let files = self.files(SUFFIX).unwrap_or_else(|cause| {
            let lost = Lost::Folder { folder: self.0.path.clone(), cause };
            faults.report(Source::Recorder, Reason::Unreadable, None, &lost);
            Vec::new()
        });
        let latest = &files[files.len().saturating_sub(most)..];
        let read = latest.iter().filter_map(|(path, bytes)| match read(path, *bytes) {
            Ok(incident) => Some(incident),
            Err(cause) => {
                let lost = Lost::Foreign { file: path.clone(), cause };
                faults.report(Source::Recorder, Reason::Malformed, None, &lost);
                None
            }
        });
        read.collect()
    }

    /// The files that have the names of incidents, each with its size. They are sorted oldest first, because the names
    /// begin with the time.
    fn files(&self, suffix: &str) -> io::Result<Vec<(PathBuf, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.0.path)? {
            let entry = entry?;
            let is_named =
                |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(suffix));
            let metadata = entry.metadata()?;
            if is_named(&entry.file_name()) && metadata.is_file() {
                files.push((entry.path(), metadata.len()));
            }
        }
        files.sort();
        Ok(files)
    }
}

fn read(path: &Path, bytes: u64) -> io::Result<Incident> {
    if bytes > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it has {bytes} bytes")));
    }
    let incident: Incident = serde_json::from_slice(&fs::read(path)?)?;
    match incident.version == VERSION {
        true => Ok(incident),
        false => Err(io::Error::other(format!(
            "it has version {}, and this program reads version {VERSION}",
            incident.version
        ))),
    }
}

#[cfg(test)]
mod tests;
