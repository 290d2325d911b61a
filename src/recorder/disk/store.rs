//! Incidents on disk: a folder with one file for each.
//!
//! Invariants: a file is either complete or absent, because it is written under another name and then renamed; the
//! folder holds a bounded number of files and bytes, and `retention` decides which are removed; the files are ordered
//! by the number in their names, and by no clock; only files with the names of incidents are ever touched; what is read
//! at the start is bounded.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Error;

use super::retention::{Claim, Room, surplus};
use super::{DiskWriter, Writable, unread};
use crate::faults::{Faults, Reason, Source};
use crate::recorder::history::{Incident, VERSION};
use crate::regular_file;

/// The beginning and the end of a file's name.
const PREFIX: &str = "incident-";
const SUFFIX: &str = ".json";
/// The end of the name of a file that is being written.
const PARTIAL: &str = ".json.partial";
/// The number of digits of the sequence number in a file's name.
const DIGITS: usize = 10;
/// The maximum number of incidents of one device and kind.
const OF_KIND: usize = 16;

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

impl Writable for Incident {
    const THREAD: &'static str = "incident-writer";
    const KEY: &'static str = "recorder.path";
    const WAITING: usize = 16;

    fn title(&self) -> String {
        format!("incident {}", self.id)
    }
}

/// Passes the incidents from earlier runs to `restore`, oldest first, each with the size of its file, as many as `room`
/// holds; then starts the writer.
///
/// # Errors
/// When the system cannot create a thread.
pub(crate) fn open(
    settings: StoreSettings,
    room: Room,
    faults: Arc<Faults>,
    restore: impl FnMut(Incident, usize),
) -> io::Result<DiskWriter<Incident>> {
    Folder(&settings).read(room, &faults, restore);
    let folder = settings.path.clone();
    DiskWriter::start(folder, faults, move |incident| Folder(&settings).write(incident))
}

/// A file in the folder, as its name describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Rises with each file, so that the order of the files does not depend on the clock.
    sequence: u64,
    id: String,
    path: PathBuf,
    claim: Claim,
}

impl Entry {
    /// `None` if it is not the name of an incident. A name without a sequence number is older than any with one.
    fn of(path: PathBuf, bytes: u64) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        let numbered = name.split_at_checked(DIGITS).and_then(|(digits, rest)| {
            let sequence = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
            let mut parts = rest.strip_prefix('-')?.rsplitn(3, '-');
            let (tenant, group, id) = (parts.next()?, parts.next()?, parts.next()?);
            Some((sequence, id.to_owned(), group.to_owned(), tenant.to_owned()))
        });
        let (sequence, id, group, tenant) = numbered.unwrap_or_else(|| {
            let group = name.split_once('-').map_or(name, |(_, group)| group).to_owned();
            (0, name.to_owned(), group.clone(), group)
        });
        Some(Self { sequence, id, path, claim: Claim { group, tenant, bytes } })
    }
}

/// A short form of a text for a file's name, of which nobody can make two alike.
fn digest(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The folder with its limits.
struct Folder<'s>(&'s StoreSettings);

impl Folder<'_> {
    fn write(&self, incident: &Incident) -> io::Result<()> {
        let text = serde_json::to_vec(incident).map_err(io::Error::other)?;
        let bytes = text.len() as u64;
        if bytes > self.0.max_bytes {
            return Err(io::Error::other(format!("it has {bytes} bytes, more than recorder.max-disk-mib allows")));
        }
        let mut files = self.files()?;
        let (group, tenant) = (digest(&incident.group()), digest(&incident.tenant()));
        let replaced = files.iter().position(|file| file.id == incident.id).map(|index| files.remove(index));
        let next = files.last().map_or(1, |file| file.sequence.saturating_add(1));
        let new = || format!("{PREFIX}{next:0DIGITS$}-{}-{group}-{tenant}{SUFFIX}", incident.id);
        let whole = replaced.map_or_else(|| self.0.path.join(new()), |file| file.path);
        let mut claims: Vec<_> = files.iter().map(|file| file.claim.clone()).collect();
        claims.push(Claim { group, tenant, bytes });
        let room = Room { of_kind: OF_KIND, count: self.0.max_files, bytes: self.0.max_bytes };
        while let Some(index) = surplus(&claims, room) {
            claims.remove(index);
            fs::remove_file(files.remove(index).path)?;
        }
        // The partial file is removed if anything fails before it is renamed.
        let mut partial = tempfile::Builder::new().prefix(PREFIX).suffix(PARTIAL).tempfile_in(&self.0.path)?;
        partial.write_all(&text)?;
        partial.as_file().sync_all()?;
        partial.persist(whole)?;
        Ok(())
    }

    /// Passes the incidents that the room holds to `restore`, oldest first. Files that a crash left unfinished are
    /// removed. A file that is larger than the whole room is skipped and counted.
    fn read(&self, room: Room, faults: &Faults, mut restore: impl FnMut(Incident, usize)) {
        let unfinished = self.paths(PARTIAL).unwrap_or_default();
        unfinished.iter().for_each(|(path, _)| drop(fs::remove_file(path)));
        let mut files = self.files().unwrap_or_else(|cause| unread("incidents", &self.0.path, cause, faults));
        let skip = |file: &Path, cause: io::Error| {
            let file = file.display();
            let foreign = format!("{file} is not an incident that this version can read; it is left as it is");
            faults.raise(Source::Recorder, Reason::Malformed, None, &*Error::new(cause).context(foreign));
        };
        for file in files.extract_if(.., |file| file.claim.bytes > room.bytes) {
            skip(&file.path, io::Error::other(format!("it has {} bytes", file.claim.bytes)));
        }
        let mut claims: Vec<_> = files.iter().map(|file| file.claim.clone()).collect();
        while let Some(index) = surplus(&claims, room) {
            claims.remove(index);
            files.remove(index);
        }
        // The sizes are counted again while the files are read, because a file may have grown.
        let mut left = room.bytes;
        for file in files {
            match read(&file.path, left) {
                Ok((incident, bytes)) => {
                    left -= bytes;
                    restore(incident, usize::try_from(bytes).unwrap_or(usize::MAX));
                }
                Err(cause) => skip(&file.path, cause),
            }
        }
    }

    /// The files with the names of incidents, oldest first.
    fn files(&self) -> io::Result<Vec<Entry>> {
        let files = self.paths(SUFFIX)?.into_iter();
        let mut files: Vec<_> = files.filter_map(|(path, bytes)| Entry::of(path, bytes)).collect();
        files.sort_unstable_by(|a, b| (a.sequence, &a.path).cmp(&(b.sequence, &b.path)));
        Ok(files)
    }

    /// The files whose names begin and end like that of an incident, each with its size.
    fn paths(&self, suffix: &str) -> io::Result<Vec<(PathBuf, u64)>> {
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
        Ok(files)
    }
}

/// An incident and the size of its file.
fn read(path: &Path, limit: u64) -> io::Result<(Incident, u64)> {
    let text = regular_file::read(path, limit)?;
    let incident: Incident = serde_json::from_slice(&text)?;
    if incident.version == VERSION {
        Ok((incident, text.len() as u64))
    } else {
        Err(io::Error::other(format!("it has version {}, and this program reads version {VERSION}", incident.version)))
    }
}

#[cfg(test)]
mod tests;
