//! Finds the driver libraries that processes have mapped, each file once.
//!
//! Invariants: a file that is handed over is the one that the process has mapped, even if another file has its path by now. It is opened
//! once, and read and attached through that descriptor. No process makes this crate keep more than [`OF_PROCESS`] files open, or more of
//! its maps than a line.
//!
//! A probe belongs to an inode: bind mounts and hard links of a file need no probe of their own, a copy does. Overlay file systems over
//! one file, such as those of containers of one image, have ids of their own but share the inode to which probes belong.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, NoLibrary};

/// What the path of a mapped library begins with, after its folder: `libcuda.so.1`, `libcuda.so.580.159.04`.
const NAME: &[u8] = b"libcuda.so";
/// What the kernel appends to the path of a mapped file that has been deleted.
const DELETED: &[u8] = b" (deleted)";

/// The number of unknown files of one process that are opened. A program has one driver, or two while it is replaced.
const OF_PROCESS: usize = 4;
/// `FUSE_SUPER_MAGIC`
const FUSE: i64 = 0x6573_5546;

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
    /// All ids that were seen, known or not, opened or not. Unless `unread`, a library that is not among the ids of all processes is in
    /// use no more.
    pub in_use: BTreeSet<LibraryId>,
    /// Whether the maps of a process could not be read.
    pub unread: bool,
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
        match found.add(pid, &process, &known) {
            Err(_) if !process.exists() => {}
            Err(error) => {
                let reason = NoLibrary::Unreadable(error);
                found.unread = true;
                found.failed.push((pid, Error::Library { path: process.join("maps"), reason }));
            }
            Ok(()) => {}
        }
    }
    found
}

impl Found {
    fn add(&mut self, pid: u32, process: &Path, known: impl Fn(LibraryId) -> bool) -> io::Result<()> {
        let mut seen = BTreeSet::new();
        let mut opened = 0;
        // Line by line: a process can have a million mappings.
        for line in BufReader::new(File::open(process.join("maps"))?).split(b'\n') {
            let Some(map) = Map::of_driver(&line?) else { continue };
            let id = map.id;
            // A library has several mappings.
            if !seen.insert(id) {
                continue;
            }
            self.in_use.insert(id);
            if known(id) || self.libraries.iter().any(|library| library.id == id) {
                continue;
            }
            opened += 1;
            let library = match opened.cmp(&(OF_PROCESS + 1)) {
                Ordering::Less => map.open(process),
                Ordering::Equal => Err(NoLibrary::TooMany),
                // Reported once.
                Ordering::Greater => continue,
            };
            match library {
                Ok(library) => {
                    let at = self.libraries.partition_point(|known| known.id < library.id);
                    self.libraries.insert(at, library);
                }
                Err(_) if !process.exists() => return Ok(()),
                Err(reason) => self.failed.push((pid, Error::Library { path: map.path, reason })),
            }
        }
        Ok(())
    }
}

/// The mapping of a driver library.
#[derive(Debug, PartialEq, Eq)]
struct Map {
    id: LibraryId,
    /// The addresses, as the kernel writes them.
    addresses: String,
    path: PathBuf,
    /// Whether the file has been deleted.
    deleted: bool,
}

impl Map {
    /// A line of `maps`: addresses, rights, offset, device, inode and path, which may contain spaces.
    fn of_driver(line: &[u8]) -> Option<Self> {
        let path = line.iter().position(|byte| *byte == b'/')?;
        let (numbers, told) = line.split_at(path);
        let (path, deleted) = told.strip_suffix(DELETED).map_or((told, false), |path| (path, true));
        let path = Path::new(OsStr::from_bytes(path));
        if !path.file_name()?.as_bytes().starts_with(NAME) {
            return None;
        }
        let mut numbers = std::str::from_utf8(numbers).ok()?.split_ascii_whitespace();
        let addresses = numbers.next()?.to_owned();
        let (major, minor) = numbers.nth(2)?.split_once(':')?;
        let number = |hexadecimal| i32::from_str_radix(hexadecimal, 16).ok();
        let id = LibraryId { device: (number(major)?, number(minor)?), inode: numbers.next()?.parse().ok()? };
        Some(Self { id, addresses, path: path.to_owned(), deleted })
    }

    /// Opens the file.
    fn open(&self, process: &Path) -> Result<Library, NoLibrary> {
        let file = self.file(process)?;
        // Its program answers the reads of the kernel that probes need, whenever it wants, and the reader would wait for it.
        if rustix::fs::fstatfs(&file).map_err(io::Error::from)?.f_type == FUSE {
            return Err(NoLibrary::Fuse);
        }
        let below = Below::of(&file)?;
        Ok(Library { id: self.id, path: self.path.clone(), deleted: self.deleted, file, below })
    }

    fn file(&self, process: &Path) -> Result<File, NoLibrary> {
        let refused = match open(&process.join("map_files").join(&self.addresses)) {
            Ok(file) => return Ok(file),
            Err(error) => error,
        };
        if self.deleted {
            return Err(refused.into());
        }
        let below_root = self.path.strip_prefix("/").unwrap_or(&self.path);
        let file = open(&process.join("root").join(below_root))?;
        // The device can differ from that in the maps, see `LibraryId`.
        if file.metadata()?.ino() == self.id.inode { Ok(file) } else { Err(NoLibrary::Replaced) }
    }
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn a_line_of_the_maps_is_read_whatever_the_path() {
        let told = |path: &str| {
            let line = format!("7f00-7fff r-xp 00001000 fd:1a 42                         {path}");
            Map::of_driver(line.as_bytes())
                .map(|map| (map.path.display().to_string(), map.deleted, map.id, map.addresses))
        };
        let id = LibraryId { device: (0xfd, 0x1a), inode: 42 };
        let is = |path: &str, deleted| Some((path.to_owned(), deleted, id, "7f00-7fff".to_owned()));
        assert_eq!(told("/usr/lib/libcuda.so.1"), is("/usr/lib/libcuda.so.1", false));
        assert_eq!(told("/a b/libcuda.so (deleted)"), is("/a b/libcuda.so", true));
        assert_eq!(
            [told("/usr/lib/libcudart.so"), told("/libcuda.so/x"), told("[heap]"), told("")],
            [None, None, None, None]
        );
        for line in
            ["/libcuda.so", "7f00-7fff /libcuda.so", "7f00-7fff r-xp 0 x 1 /libcuda.so", "a b c 1:1 x /libcuda.so"]
        {
            assert_eq!(Map::of_driver(line.as_bytes()), None, "{line}");
        }
        assert!(Map::of_driver(b"7f00-7fff r-xp 00001000 fd:1a 42 /\xff\xfe/libcuda.so.1").is_some());
    }

    #[test]
    fn a_process_with_many_files_of_the_name_has_a_few_of_them_opened() {
        let procfs = tempfile::tempdir().unwrap();
        let files = procfs.path().join("7/map_files");
        std::fs::create_dir_all(&files).unwrap();
        let mut maps = String::new();
        for number in 1..=10_000 {
            if number <= 20 {
                std::fs::write(files.join(format!("{number:x}000-{number:x}fff")), "").unwrap();
            }
            writeln!(maps, "{number:x}000-{number:x}fff r-xp 0 0:2d {number}   /tmp/{number}/libcuda.so.1").unwrap();
        }
        std::fs::write(procfs.path().join("7/maps"), maps).unwrap();
        let found = find_libraries(procfs.path(), [7, 8], |id| id.inode == 1);
        let opened: Vec<u64> = found.libraries.iter().map(|library| library.id.inode).collect();
        assert_eq!((opened, found.in_use.len(), found.unread), (vec![2, 3, 4, 5], 10_000, false));
        let [(7, Error::Library { path, reason: NoLibrary::TooMany })] = &found.failed[..] else {
            unreachable!("{:?}", found.failed)
        };
        assert_eq!(path, Path::new("/tmp/6/libcuda.so.1"));
    }
}
