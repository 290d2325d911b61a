//! Finds the driver libraries that processes have mapped, each file once.
//!
//! Invariant: a file that is handed over is the one that the process has mapped, even if another file has its path by now. It is opened
//! once, and read and attached through that descriptor.
//!
//! A probe belongs to an inode: bind mounts and hard links of a file need no probe of their own, a copy does. Overlay file systems over
//! one file, such as those of containers of one image, have ids of their own but share the inode to which probes belong.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use procfs::process::{MMapPath, MemoryMap, MemoryMaps, Process};

use crate::error::{Error, NoLibrary};

/// What the path of a mapped library begins with, after its folder: `libcuda.so.1`, `libcuda.so.580.159.04`.
const NAME: &[u8] = b"libcuda.so";
/// What the kernel appends to the path of a mapped file that has been deleted.
const DELETED: &[u8] = b" (deleted)";

/// A file, as the kernel tells it in `/proc/PID/maps`. It stays the same while the file is in use. On some file systems, such as btrfs
/// and overlayfs, `stat` gives another device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LibraryId {
    /// The major and the minor number of the device.
    pub device: (i32, i32),
    /// The number of the inode on it.
    pub inode: u64,
}

/// An open driver library.
#[derive(Debug)]
pub struct Library {
    /// Which file it is.
    pub id: LibraryId,
    /// Its path in the mount namespace of the process that has mapped it, for messages. There may be another file by now.
    pub path: PathBuf,
    /// Whether the file had been deleted when it was found, as happens when a driver is replaced.
    pub deleted: bool,
    pub(crate) file: File,
    below: Below,
}

/// What a file has in common with the file below it, if it is on an overlay file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Below {
    pub(crate) overlay: bool,
    /// The number of its inode, its size, and the times of the last changes of its content and its inode, in nanoseconds.
    told: [i128; 4],
}

impl Below {
    fn of(file: &File) -> io::Result<Self> {
        /// `OVERLAYFS_SUPER_MAGIC`
        const OVERLAY: i64 = 0x794c_7630;
        let told = file.metadata()?;
        let time = |seconds: i64, nanoseconds: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        Ok(Self {
            overlay: rustix::fs::fstatfs(file)?.f_type == OVERLAY,
            told: [
                told.ino().into(),
                told.size().into(),
                time(told.mtime(), told.mtime_nsec()),
                time(told.ctime(), told.ctime_nsec()),
            ],
        })
    }

    /// Whether probes on the one file are probes on the other. Copies on a file system without overlays, such as snapshots, can have
    /// the same numbers and times.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.overlay || other.overlay) && self.told == other.told
    }
}

impl Library {
    pub(crate) fn below(&self) -> Below {
        self.below
    }

    /// Opens a library by its path. Its id is that of [`find_libraries`] where `stat` gives the same device, see [`LibraryId`].
    ///
    /// # Errors
    /// The file cannot be opened, or it is not a regular file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let open = || {
            let file = open(path)?;
            Ok(Self {
                id: id(&file.metadata()?),
                path: path.to_owned(),
                deleted: false,
                below: Below::of(&file)?,
                file,
            })
        };
        open().map_err(|reason| Error::Library { path: path.to_owned(), reason: NoLibrary::Unreadable(reason) })
    }
}

/// What was found in the maps of processes.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Found {
    /// The libraries that were not known, each once, by their ids.
    pub libraries: Vec<Library>,
    /// All ids that were seen, known or not, opened or not. If nothing failed, a library that is not among the ids of all processes
    /// is in use no more.
    pub in_use: BTreeSet<LibraryId>,
    /// The processes whose maps could not be read or whose library could not be opened, with the reason. A process that has ended is
    /// not among them.
    pub failed: Vec<(u32, Error)>,
}

/// Finds the libraries named `libcuda.so…` that these processes have mapped, and opens those that `known` does not contain.
///
/// `procfs` is a mounted procfs, usually `/proc`, and the pids are those of its namespace. Reading the maps of another user's process
/// needs CAP_SYS_PTRACE. The file is opened through `map_files`, which needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, and otherwise
/// through the root folder of the process, where only a file that has not been deleted or replaced can be reached.
pub fn find_libraries(procfs: &Path, pids: impl IntoIterator<Item = u32>, known: impl Fn(LibraryId) -> bool) -> Found {
    let mut found = Found::default();
    for pid in pids {
        let process = procfs.join(pid.to_string());
        match Process::new_with_root(process.clone()).and_then(|process| process.maps()) {
            Ok(maps) => found.add(pid, &process, &maps, &known),
            Err(procfs::ProcError::NotFound(_)) => {}
            Err(error) => {
                let reason = NoLibrary::Unreadable(io::Error::other(error));
                found.failed.push((pid, Error::Library { path: process.join("maps"), reason }));
            }
        }
    }
    found.libraries.sort_by_key(|library| library.id);
    found
}

impl Found {
    fn add(&mut self, pid: u32, process: &Path, maps: &MemoryMaps, known: impl Fn(LibraryId) -> bool) {
        let mut seen = BTreeSet::new();
        for (map, path, deleted) in maps.iter().filter_map(of_driver) {
            let id = LibraryId { device: map.dev, inode: map.inode };
            // A library has several mappings.
            if !seen.insert(id) {
                continue;
            }
            self.in_use.insert(id);
            if known(id) || self.libraries.iter().any(|library| library.id == id) {
                continue;
            }
            let opened = open_mapped(process, map, &path, deleted).and_then(|file| Ok((Below::of(&file)?, file)));
            match opened {
                Ok((below, file)) => self.libraries.push(Library { id, path, deleted, file, below }),
                Err(_) if !process.exists() => return,
                Err(reason) => self.failed.push((pid, Error::Library { path, reason })),
            }
        }
    }
}

/// The mapping of a driver library, its path, and whether the file has been deleted.
fn of_driver(map: &MemoryMap) -> Option<(&MemoryMap, PathBuf, bool)> {
    let MMapPath::Path(told) = &map.pathname else { return None };
    let told = told.as_os_str().as_bytes();
    let (path, deleted) = told.strip_suffix(DELETED).map_or((told, false), |path| (path, true));
    let path = Path::new(OsStr::from_bytes(path));
    path.file_name()?.as_bytes().starts_with(NAME).then(|| (map, path.to_owned(), deleted))
}

/// Opens the file of a mapping.
fn open_mapped(process: &Path, map: &MemoryMap, path: &Path, deleted: bool) -> Result<File, NoLibrary> {
    let (begin, end) = map.address;
    let refused = match open(&process.join(format!("map_files/{begin:x}-{end:x}"))) {
        Ok(file) => return Ok(file),
        Err(error) => error,
    };
    if deleted {
        return Err(refused.into());
    }
    let below_root = path.strip_prefix("/").unwrap_or(path);
    let file = open(&process.join("root").join(below_root))?;
    // The device can differ from that in the maps, see `LibraryId`.
    if file.metadata()?.ino() == map.inode { Ok(file) } else { Err(NoLibrary::Replaced) }
}

/// Opens a regular file. Without waiting: a process can have a pipe at the path by now.
fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

fn id(file: &std::fs::Metadata) -> LibraryId {
    let number = |part: libc::c_uint| i32::try_from(part).unwrap_or(-1);
    LibraryId { device: (number(libc::major(file.dev())), number(libc::minor(file.dev()))), inode: file.ino() }
}
