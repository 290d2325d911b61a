//! The probes of all libraries: their maps, programs and links, and the events that come out of them.
//!
//! Invariant: nothing is loaded under a dangerous kernel, and everything that was loaded ends when [`Probes`] is dropped.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::attach::{Programs, Way, has_no_multi};
use crate::call::{Kind, ROWS, Row};
use crate::elf;
use crate::error::{Error, NoLibrary};
use crate::event::{Event, Lost, Mode};
use crate::kernel::{self, Operation};
use crate::library::{Below, Library, LibraryId};
use crate::program::{Counter, Maps};
use crate::record::{ALWAYS, ROW, Record, WORDS};
use crate::ring::Ring;
use crate::sys::{self, Keyed, MAPPABLE, MapKind, Mapping, Place};

/// Calls that can be in progress at once. The kernel keeps up to 128 free places for each processor.
const ENTRIES: u32 = 16_384;
/// Requests whose refusal is remembered, to recognize a retry.
const REFUSED: u32 = 4096;

/// What to watch, and with which means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Which calls become events.
    pub mode: Mode,
    /// How programs are attached; `None`: with `uprobe_multi`, or with `perf_event_open` if the kernel does not have it.
    pub way: Option<Way>,
    /// The size of the ring in bytes, a power of two and a multiple of the page size. A call takes 152 bytes.
    pub ring_bytes: u32,
}

impl Settings {
    /// With a ring of 4 MiB for all calls, which is 27,594 calls between two reads, and of 256 KiB for refusals.
    pub fn new(mode: Mode) -> Self {
        let ring_bytes = match mode {
            Mode::All => 4 << 20,
            Mode::Refusals => 256 << 10,
        };
        Self { mode, way: None, ring_bytes }
    }
}

/// What was attached to a library.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attached {
    /// How.
    pub way: Way,
    /// The symbols that have a probe.
    pub symbols: Vec<&'static str>,
    /// The symbols that the library does not export: older drivers lack some.
    pub absent: Vec<&'static str>,
}

/// Calls that have been entered and have not returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Unfinished {
    /// Calls of threads that exist.
    pub running: u64,
    /// Calls of threads that ended in the call. They are forgotten now, so each is counted once.
    pub ended: u64,
}

/// Loaded programs, the libraries that they are attached to, and the reader's end of the ring.
///
/// The descriptor ([`AsFd`]) becomes readable at once for a refusal, and when a quarter of the ring is unread. Other events do not wake
/// a reader, who therefore also reads on a timer, for example every 100 ms. Wait for an edge (`EPOLLET`): a level is true while any
/// event is unread.
#[derive(Debug)]
pub struct Probes {
    // The links are dropped before the programs and the maps.
    attached: Vec<Watched>,
    settings: Settings,
    programs: Programs,
    ring: Ring,
    counters: Mapping,
    maps: Maps,
    unreadable: u64,
}

/// A file with probes.
#[derive(Debug)]
struct Watched {
    id: LibraryId,
    below: Below,
    /// Files that are the same below overlay file systems share their probes.
    links: Arc<[OwnedFd]>,
}

impl Probes {
    /// Loads the programs. No process is watched yet.
    ///
    /// # Errors
    /// The kernel is dangerous or too old, a right is missing, or the size of the ring is wrong.
    pub fn load(settings: Settings) -> Result<Self, Error> {
        let release = kernel::release().unwrap_or_default();
        kernel::check(&release).map_err(|danger| Error::Dangerous { release, danger })?;
        let bytes = settings.ring_bytes;
        if !bytes.is_power_of_two() || bytes > 1 << 30 || u64::from(bytes) % procfs::page_size() != 0 {
            return Err(Error::RingSize(bytes));
        }
        let create = |error| Error::of(Operation::MapCreate, error);
        let maps = Maps {
            entries: Keyed::new(8 * WORDS, ENTRIES).map_err(create)?,
            blank: sys::create_map(MapKind::Array, 4, 8 * WORDS, 1, 0).map_err(create)?,
            refused: Keyed::new(8, REFUSED).map_err(create)?,
            ring: sys::create_map(MapKind::Ring, 0, 0, bytes, 0).map_err(create)?,
            ring_bytes: bytes,
            counters: sys::create_map(MapKind::Array, 4, 8 * Counter::COUNT, 1, MAPPABLE).map_err(create)?,
        };
        let programs = match settings.way {
            Some(way) => Programs::load(&maps, settings.mode, way)?,
            None => match Programs::load(&maps, settings.mode, Way::Multi) {
                Err(error) if !matches!(error, Error::Rights { .. }) => {
                    Programs::load(&maps, settings.mode, Way::PerfEvent)?
                }
                programs => programs?,
            },
        };
        let map = |error| Error::of(Operation::Map, error);
        let page = usize::try_from(procfs::page_size()).unwrap_or(4096);
        Ok(Self {
            attached: Vec::new(),
            settings,
            programs,
            ring: Ring::new(maps.ring.as_fd(), bytes).map_err(map)?,
            counters: Mapping::new(maps.counters.as_fd(), page, false, 0).map_err(map)?,
            maps,
            unreadable: 0,
        })
    }

    /// Attaches probes to the calls of a library, for all processes that use the file, now or later. The file may be closed and deleted.
    /// A library that is attached already stays as it is.
    ///
    /// # Errors
    /// The file is no driver library, or the kernel refuses. Nothing is attached to it then.
    pub fn attach(&mut self, library: &Library) -> Result<Attached, Error> {
        let refuse = |reason| Error::Library { path: library.path.clone(), reason };
        let symbols: Vec<&str> = ROWS.iter().map(|row| row.symbol).collect();
        let offsets = elf::offsets(&library.file, &symbols).map_err(refuse)?;
        let mut result = Attached { way: self.programs.way, symbols: Vec::new(), absent: Vec::new() };
        let (mut places, mut asks): (Vec<Place>, bool) = (Vec::new(), false);
        for ((index, row), offset) in (0_u8..).zip(ROWS).zip(offsets) {
            match offset {
                _ if self.settings.mode == Mode::Refusals && matches!(row.kind, Kind::Gives | Kind::Maps) => {}
                None => result.absent.push(row.symbol),
                // Two names of one function: a second probe would report each call twice.
                Some(offset) if places.iter().any(|place| place.offset == offset) => {}
                Some(offset) => {
                    places.push(Place { offset, cookie: cookie(index, row) });
                    result.symbols.push(row.symbol);
                    asks |= row.kind == Kind::Asks;
                }
            }
        }
        if !asks {
            return Err(refuse(NoLibrary::LacksCalls));
        }
        if self.is_attached(library.id) {
            return Ok(result);
        }
        let links = self.links_of(library, &places)?;
        self.attached.push(Watched { id: library.id, below: library.below(), links });
        result.way = self.programs.way;
        Ok(result)
    }

    /// The links of a file that is attached under another id, or new ones. A file below an overlay replaces the one on it, whose numbers
    /// and times a process could have forged.
    fn links_of(&mut self, library: &Library, places: &[Place]) -> Result<Arc<[OwnedFd]>, Error> {
        let below = library.below();
        let same = |watched: &Watched| watched.below.is_same(&below);
        if let Some(watched) = self.attached.iter().find(|watched| same(watched))
            && (below.overlay || !watched.below.overlay)
        {
            return Ok(Arc::clone(&watched.links));
        }
        let links: Arc<[OwnedFd]> = self.link(&library.file, places)?.into();
        for watched in self.attached.iter_mut().filter(|watched| same(watched)) {
            watched.links = Arc::clone(&links);
        }
        Ok(links)
    }

    /// Attaches the programs, and decides the way if this is the first time.
    fn link(&mut self, file: &File, places: &[Place]) -> Result<Vec<OwnedFd>, Error> {
        match self.programs.attach(file, places) {
            Err(error) if self.attached.is_empty() && self.settings.way.is_none() && has_no_multi(&error) => {
                let other = Programs::load(&self.maps, self.settings.mode, Way::PerfEvent)?;
                // The file may be what the kernel refuses, in either way.
                let links = other.attach(file, places)?;
                self.programs = other;
                Ok(links)
            }
            links => links,
        }
    }

    /// Whether probes are attached to this file.
    pub fn is_attached(&self, id: LibraryId) -> bool {
        self.attached.iter().any(|watched| watched.id == id)
    }

    /// The files with probes.
    pub fn attached(&self) -> impl Iterator<Item = LibraryId> {
        self.attached.iter().map(|watched| watched.id)
    }

    /// Removes the probes of a file; whether there were any. Events that are in the ring stay there.
    pub fn detach(&mut self, id: LibraryId) -> bool {
        let before = self.attached.len();
        self.attached.retain(|watched| watched.id != id);
        self.attached.len() < before
    }

    /// Hands over the events that are in the ring now, and returns their number. Events that arrive meanwhile wait for the next time,
    /// so that a process which calls without end cannot hold the reader. Events of one thread are in the order of their returns.
    pub fn drain(&mut self, mut each: impl FnMut(Event)) -> usize {
        let (mut events, mut unknown) = (0, 0);
        let odd = self.ring.drain(|words| match Event::of(&Record(words)) {
            Some(event) => {
                events += 1;
                each(event);
            }
            None => unknown += 1,
        });
        self.unreadable += odd + unknown;
        events
    }

    /// The calls that became no event so far.
    pub fn lost(&self) -> Lost {
        let counter = |counter: Counter| self.counters.u64(counter.offset().into()).load(Ordering::Relaxed);
        Lost {
            ring_full: counter(Counter::RingFull),
            entry_table_full: counter(Counter::EntryTableFull),
            return_without_entry: counter(Counter::ReturnWithoutEntry),
            never_returned: counter(Counter::EntryReplaced),
            unreadable: self.unreadable,
        }
    }

    /// The threads that are in a call which gives memory back. When it does so is not known before the call returns, so what their
    /// processes hold is not known either.
    pub fn giving(&self) -> BTreeSet<u32> {
        let gives = |key: &u64| ROWS.get((key & ROW) as usize).is_some_and(|row| row.kind == Kind::Gives);
        self.entered().into_iter().filter(gives).map(|key| (key >> 32) as u32).collect()
    }

    /// The keys of the calls that have been entered and have not returned.
    fn entered(&self) -> BTreeSet<u64> {
        let mut keys = BTreeSet::new();
        let mut last = None;
        // A key that is removed meanwhile starts the walk again, so it is bounded.
        for _ in 0..2 * ENTRIES {
            last = sys::next_key(&self.maps.entries, last);
            match last {
                Some(key) => keys.insert(key),
                None => break,
            };
        }
        keys
    }

    /// Looks for calls of threads that have ended, and forgets them. What such a call did is unknown. The kernel forgets them too when
    /// the table of 16,384 entries is full, so call this from time to time.
    ///
    /// `procfs` must be of the first pid namespace, because threads are looked up there.
    pub fn sweep(&mut self, procfs: &Path) -> Unfinished {
        let mut unfinished = Unfinished::default();
        for key in self.entered() {
            if procfs.join((key >> 32).to_string()).exists() {
                unfinished.running += 1;
            } else if sys::delete(&self.maps.entries, key) {
                unfinished.ended += 1;
            }
        }
        unfinished
    }
}

impl AsFd for Probes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.maps.ring.as_fd()
    }
}

/// The number that a probe hands to the programs.
fn cookie(index: u8, row: &Row) -> u64 {
    let always = if row.kind == Kind::Tells { ALWAYS } else { 0 };
    u64::from(index) | row.reads.bits() | u64::from(always.cast_unsigned())
}
