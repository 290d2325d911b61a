//! The thread that opens the driver, samples the memory of every device, and lists the processes.
//!
//! Invariant: the shared state is locked only between driver calls. Lists are read when the memory of a device has
//! changed, and at least every [`LIST_INTERVAL`]; in one round, the lists of all devices that have changed are read
//! together.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::lists::Lists;
use super::names::Names;
use super::places::{self, Machine};
use super::record::{Entry, Level, Membership, Record};
use super::tree::Tree;
use crate::nvml::{Device, Discovery, Driver, Error, Library, Severity};

/// The longest time between two reads of all lists.
pub(super) const LIST_INTERVAL: Duration = Duration::from_millis(100);
/// At most 1/`LIST_SHARE` of the time may be spent on reading lists, unless [`LIST_INTERVAL`] requires more.
const LIST_SHARE: u32 = 5;

/// The state that the threads share.
#[derive(Debug, Default, Clone)]
pub(super) struct State {
    /// `None` until the driver is open.
    pub(super) machine: Option<Machine>,
    pub(super) record: Record,
    /// Why the driver could not be opened, or when and why it was lost.
    pub(super) problem: Option<String>,
    /// When the last read of all lists began, and how many living processes of the command were in them.
    pass: Option<(Instant, usize)>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    stop: AtomicBool,
    pass_wanted: AtomicBool,
}

/// The running thread.
#[derive(Debug)]
pub(super) struct Sampler {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    begin: Sender<Instant>,
}

impl Sampler {
    /// Starts the thread, which opens the driver. The receiver is ready once the driver is open or has failed to open.
    pub(super) fn open(
        library: Library,
        period: Duration,
        names: Option<Names>,
    ) -> io::Result<(Self, oneshot::Receiver<()>)> {
        let shared = Arc::new(Shared::default());
        let (begin, begins) = channel();
        let (opened, is_open) = oneshot::channel();
        let worker = Worker { shared: shared.clone(), period, names };
        let thread =
            thread::Builder::new().name("sampler".into()).spawn(move || worker.run(&library, opened, &begins))?;
        Ok((Self { shared, thread, begin }, is_open))
    }

    /// Starts sampling. Times are counted from `start`.
    pub(super) fn begin(&self, start: Instant) {
        // The thread has ended if the driver could not be opened.
        let _ = self.begin.send(start);
    }

    /// Whether samples are being taken.
    pub(super) fn is_running(&self) -> bool {
        !self.thread.is_finished() && self.shared.state.lock().machine.is_some()
    }

    /// Requests that all lists be read now.
    pub(super) fn want_pass(&self) {
        self.shared.pass_wanted.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }

    /// The number of living processes of the command in the lists; `None` if they have not all been read since `since`.
    pub(super) fn living_since(&self, since: Instant) -> Option<usize> {
        let (at, living) = self.shared.state.lock().pass?;
        (at >= since).then_some(living)
    }

    /// Ends the thread and returns what it measured. If a driver call does not return within `limit`, the thread is
    /// left running, and the second value is `true`.
    pub(super) fn end(self, limit: Duration) -> (State, bool) {
        self.shared.stop.store(true, Ordering::Release);
        drop(self.begin);
        self.thread.thread().unpark();
        let deadline = Instant::now() + limit;
        while !self.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let hangs = !self.thread.is_finished();
        let mut state = self.shared.state.lock().clone();
        if !hangs && self.thread.join().is_err() {
            state.problem.get_or_insert_with(|| "the sampling thread panicked".to_owned());
        }
        (state, hangs)
    }
}

struct Worker {
    shared: Arc<Shared>,
    period: Duration,
    names: Option<Names>,
}

impl Worker {
    fn run(&self, library: &Library, opened: oneshot::Sender<()>, begins: &Receiver<Instant>) {
        let driver = match open(library) {
            Ok(driver) => driver,
            Err(error) => {
                self.shared.state.lock().problem = Some(format!("{error:#}"));
                return;
            }
        };
        let (machine, devices) = places::of(&driver);
        {
            let mut state = self.shared.state.lock();
            state.record = Record::new(machine.places.len());
            state.machine = Some(machine);
        }
        let _ = opened.send(());
        if let Ok(start) = begins.recv() {
            Round::new(self, devices, start).repeat();
        }
    }
}

fn open(library: &Library) -> anyhow::Result<Driver> {
    let mut driver = library.open()?;
    driver.discover(&Discovery::default())?;
    Ok(driver)
}

/// The error with its cause.
fn describe(error: Error) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// A device and what is known about it.
struct Sampled<'d> {
    device: Device<'d>,
    lists: Lists,
    /// The memory in use at the last sample.
    used: Option<u64>,
    /// Whether the memory has changed since the lists were last read.
    changed: bool,
    /// Whether the device reports its memory.
    has_memory: bool,
    /// A GPU that is unreachable is not queried again before this time.
    retry: Option<Instant>,
}

/// Repeated rounds over all devices.
struct Round<'w, 'd> {
    worker: &'w Worker,
    devices: Vec<Sampled<'d>>,
    tree: Tree,
    start: Instant,
    /// When all lists were last read, and when any list was last read.
    last_pass: Option<Instant>,
    last_lists: Instant,
    /// How long the last read of lists took.
    list_time: Duration,
}

impl<'w, 'd> Round<'w, 'd> {
    fn new(worker: &'w Worker, devices: Vec<Device<'d>>, start: Instant) -> Self {
        let devices = devices.into_iter().map(|device| Sampled {
            device,
            lists: Lists::default(),
            used: None,
            changed: true,
            has_memory: true,
            retry: None,
        });
        Self {
            worker,
            devices: devices.collect(),
            tree: Tree::below(std::process::id()),
            start,
            last_pass: None,
            last_lists: start,
            list_time: Duration::ZERO,
        }
    }

    /// Repeats rounds until the end is requested or the driver is lost. There is at least one round, because a command
    /// may be very short.
    fn repeat(&mut self) {
        let shared = &self.worker.shared;
        let mut next = Instant::now();
        loop {
            if let Err(error) = self.once() {
                let at = self.start.elapsed().as_secs_f64();
                let problem = format!("the driver was lost {at:.1} s after the start: {}", describe(error));
                shared.state.lock().problem = Some(problem);
                return;
            }
            if shared.stop.load(Ordering::Acquire) {
                break;
            }
            next += self.worker.period;
            let now = Instant::now();
            match next.checked_duration_since(now) {
                // A request may arrive while the thread is asleep.
                Some(wait) if !shared.pass_wanted.load(Ordering::Acquire) => thread::park_timeout(wait),
                Some(_) => {}
                // Missed samples are not made up for later.
                None => next = now,
            }
        }
        shared.state.lock().record.end(self.start.elapsed());
    }

    fn once(&mut self) -> Result<(), Error> {
        let shared = self.worker.shared.clone();
        shared.state.lock().record.begin_round(self.start.elapsed());
        for place in 0..self.devices.len() {
            self.sample(place)?;
        }
        let now = Instant::now();
        let wanted = shared.pass_wanted.swap(false, Ordering::AcqRel);
        let all = wanted || self.last_pass.is_none_or(|last| now.saturating_duration_since(last) >= LIST_INTERVAL);
        let may = now.saturating_duration_since(self.last_lists) >= LIST_SHARE * self.list_time;
        let due = all || (may && self.devices.iter().any(|device| device.changed));
        if !due {
            return Ok(());
        }
        let mut living = 0;
        for place in 0..self.devices.len() {
            if all || self.devices[place].changed {
                living += self.list(place, all, now)?;
            }
        }
        self.last_lists = Instant::now();
        self.list_time = self.last_lists.saturating_duration_since(now);
        let mut state = shared.state.lock();
        state.record.end_lists(self.at(now));
        if all {
            self.last_pass = Some(now);
            state.pass = Some((now, living));
        }
        Ok(())
    }

    fn at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }

    /// Reads the memory of a device. Returns the memory in use.
    fn sample(&mut self, place: usize) -> Result<Option<u64>, Error> {
        let sampled = &mut self.devices[place];
        if !sampled.has_memory || sampled.retry.is_some_and(|retry| Instant::now() < retry) {
            return Ok(None);
        }
        let answer = sampled.device.memory();
        let at = self.start.elapsed();
        let record = &mut self.worker.shared.state.lock().record;
        match answer {
            Ok(memory) => {
                let allocatable = memory.total.saturating_sub(memory.reserved.unwrap_or(0));
                record.sample(place, at, Level { used: memory.used, allocatable });
                sampled.changed |= sampled.used.replace(memory.used) != Some(memory.used);
                Ok(Some(memory.used))
            }
            Err(error) if error.severity() == Severity::Driver => Err(error),
            Err(error) => {
                let severity = error.severity();
                sampled.retry = (severity == Severity::Gpu).then(|| Instant::now() + LIST_INTERVAL);
                match severity {
                    Severity::Absent => sampled.has_memory = false,
                    _ => record.no_sample(place, at, &describe(error)),
                }
                Ok(None)
            }
        }
    }

    /// Lists the processes of a device. Returns how many of them belong to the command and are alive.
    fn list(&mut self, place: usize, all: bool, now: Instant) -> Result<usize, Error> {
        let before = self.devices[place].used;
        let sampled = &mut self.devices[place];
        // If a list cannot be read, it is read again after the next change or the next interval.
        sampled.changed = false;
        let listed = match sampled.lists.read(&sampled.device, all) {
            Ok(listed) => listed,
            Err(error) if error.severity() == Severity::Driver => return Err(error),
            Err(error) => {
                self.worker.shared.state.lock().record.no_list(place, &describe(error));
                return Ok(0);
            }
        };
        let after = self.sample(place)?;
        let mut living = 0;
        let entries: Vec<Entry> = listed
            .into_iter()
            .map(|(pid, used)| {
                let found = self.tree.find(pid, now);
                living += usize::from(found.membership == Membership::Tree && found.alive);
                Entry { key: found.key, membership: found.membership, used }
            })
            .collect();
        let record = &mut self.worker.shared.state.lock().record;
        let known = record.places[place].processes.as_ref();
        let is_new = |entry: &&Entry| known.is_none_or(|known| !known.contains_key(&entry.key));
        let new: Vec<Entry> = entries.iter().filter(is_new).copied().collect();
        let level = before.zip(after).map(|(before, after)| before.min(after));
        record.list(place, now.saturating_duration_since(self.start), &entries, level);
        let remembered = record.places[place].processes.as_ref();
        if let (Some(names), Some(remembered)) = (&self.worker.names, remembered) {
            let new = new.iter().filter(|entry| remembered.contains_key(&entry.key));
            new.for_each(|entry| names.look_up(entry.key, entry.membership));
        }
        Ok(living)
    }
}
