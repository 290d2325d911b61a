//! The thread that opens the driver, samples the memory of every device, and lists the processes.
//!
//! Invariant: the shared state is locked only between driver calls. The lists of all devices are read together, when the
//! memory of one of them has changed and at least every [`LIST_INTERVAL`]. They are of one moment only if the memory of
//! every device was the same before the first list and after the last one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gpu_readings::nvml::{Device, Discovery, Driver, Error, Library, Severity};
use gpu_readings::snapshot::allocatable;
use parking_lot::Mutex;

use super::lists::Lists;
use super::names::Names;
use super::places::{self, Machine};
use super::record::{Entry, Level, Membership, Pass, Record};
use super::tree::Tree;

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
    /// The device on which a driver call is being made, and when the call began, from the start of the command.
    pub(super) calling: Option<(usize, Duration)>,
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
    /// Starts the thread, which opens the driver.
    pub(super) fn open(library: Library, period: Duration, names: Option<Names>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (begin, begins) = channel();
        let worker = Worker { shared: shared.clone(), period, names };
        let thread = thread::Builder::new().name("sampler".into()).spawn(move || worker.run(&library, &begins))?;
        Ok(Self { shared, thread, begin })
    }

    /// Starts sampling as soon as the driver is open. Times are counted from `start`.
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
    fn run(&self, library: &Library, begins: &Receiver<Instant>) {
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
        if let Ok(start) = begins.recv() {
            Round::new(self, devices, start).repeat();
        }
    }
}

impl Worker {
    /// Makes a driver call on a device. While it lasts, the shared state names the device.
    fn call<T>(&self, place: usize, start: Instant, call: impl FnOnce() -> T) -> T {
        self.shared.state.lock().calling = Some((place, start.elapsed()));
        let answer = call();
        self.shared.state.lock().calling = None;
        answer
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
    /// The memory in use; `None` if the last sample failed.
    used: Option<u64>,
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
    /// Whether the memory of a device has changed since the lists were last read.
    changed: bool,
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
            has_memory: true,
            retry: None,
        });
        Self {
            worker,
            devices: devices.collect(),
            tree: Tree::below(std::process::id()),
            changed: true,
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
        let is_due = all || (may && self.changed);
        if !is_due {
            return Ok(());
        }
        // If a list cannot be read, it is read again after the next change or the next interval.
        self.changed = false;
        let before: Vec<_> = self.devices.iter().map(|device| device.used).collect();
        let mut lists = Vec::with_capacity(self.devices.len());
        for place in 0..self.devices.len() {
            lists.push(self.list(place, all, now)?);
        }
        for place in 0..self.devices.len() {
            self.sample(place)?;
        }
        let mut living = 0;
        for (place, (entries, before)) in lists.into_iter().zip(&before).enumerate() {
            let Some(entries) = entries else { continue };
            living += entries.iter().filter(|(_, is_living)| *is_living).count();
            let level = before.zip(self.devices[place].used).map(|(before, after)| before.min(after));
            let entries: Vec<_> = entries.into_iter().map(|(entry, _)| entry).collect();
            self.enter(place, self.at(now), &entries, level);
        }
        // One list is of one moment by itself.
        let is_same = |(device, before): (&Sampled<'_>, &Option<u64>)| before.is_some() && device.used == *before;
        let is_steady = before.len() == 1 || self.devices.iter().zip(&before).all(is_same);
        self.last_lists = Instant::now();
        self.list_time = self.last_lists.saturating_duration_since(now);
        let mut state = shared.state.lock();
        state.record.end_lists(self.at(now), if is_steady { Pass::OneMoment } else { Pass::Changed });
        if all {
            self.last_pass = Some(now);
            state.pass = Some((now, living));
        }
        Ok(())
    }

    fn at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }

    /// Reads the memory of a device.
    fn sample(&mut self, place: usize) -> Result<(), Error> {
        let sampled = &mut self.devices[place];
        if !sampled.has_memory || sampled.retry.is_some_and(|retry| Instant::now() < retry) {
            return Ok(());
        }
        let answer = self.worker.call(place, self.start, || sampled.device.memory());
        let at = self.start.elapsed();
        let record = &mut self.worker.shared.state.lock().record;
        let before = sampled.used.take();
        match answer {
            Ok(memory) => {
                let allocatable = allocatable(memory.total, memory.reserved);
                record.sample(place, at, Level { used: memory.used, allocatable });
                sampled.used = Some(memory.used);
                self.changed |= before != sampled.used;
            }
            Err(error) if error.severity() == Severity::Driver => return Err(error),
            Err(error) => {
                let severity = error.severity();
                sampled.retry = (severity == Severity::Gpu).then(|| Instant::now() + LIST_INTERVAL);
                match severity {
                    Severity::Absent => {
                        sampled.has_memory = false;
                        record.places[place].has_no_memory = true;
                    }
                    _ => record.no_sample(place, at, &describe(error)),
                }
            }
        }
        Ok(())
    }

    /// Lists the processes of a device, each with whether it belongs to the command and is alive; `None` if they cannot be listed.
    fn list(&mut self, place: usize, all: bool, now: Instant) -> Result<Option<Vec<(Entry, bool)>>, Error> {
        let sampled = &mut self.devices[place];
        let listed = match self.worker.call(place, self.start, || sampled.lists.read(&sampled.device, all)) {
            Ok(listed) => listed,
            Err(error) if error.severity() == Severity::Driver => return Err(error),
            Err(error) => {
                self.worker.shared.state.lock().record.no_list(place, &describe(error));
                return Ok(None);
            }
        };
        let entry = |(pid, used)| {
            let found = self.tree.find(pid, now);
            let is_living = found.membership == Membership::Tree && found.alive;
            (Entry { key: found.key, membership: found.membership, used }, is_living)
        };
        Ok(Some(listed.into_iter().map(entry).collect()))
    }

    /// Records a list, and asks for the names of the processes that are new in it.
    fn enter(&self, place: usize, at: Duration, entries: &[Entry], level: Option<u64>) {
        let record = &mut self.worker.shared.state.lock().record;
        let known = record.places[place].processes.as_ref();
        let is_new = |entry: &&Entry| known.is_none_or(|known| !known.contains_key(&entry.key));
        let new: Vec<Entry> = entries.iter().filter(is_new).copied().collect();
        record.list(place, at, entries, level);
        let remembered = record.places[place].processes.as_ref();
        if let (Some(names), Some(remembered)) = (&self.worker.names, remembered) {
            let new = new.iter().filter(|entry| remembered.contains_key(&entry.key));
            new.for_each(|entry| names.look_up(entry.key, entry.membership));
        }
    }
}
