//! The thread that loads the probes, reads their events and passes on what they mean.
//!
//! Invariant: if the probes cannot be loaded or attached, the reason is published and logged once, and nothing else changes.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use cuda_probe::{Error, Lost, Mode, Probes};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::account::{Account, Refusal};
use super::clocks::{Clocks, Ticks};
use super::held::Span;
use super::libraries::Libraries;
use super::requests::Request;
use super::sieve::Sieve;
use super::view::{Givers, View};
use gpu_readings::attribution::{process, sees_host_processes};
use gpu_readings::faults::{Faults, Reason, Source};
use gpu_readings::snapshot::{CallPart, CallState, FailedAllocation, LostCalls, ProcessId, Snapshot};

/// How often the events are read. A refusal is read at once.
const PERIOD: Duration = Duration::from_millis(100);
/// The shortest time between two rounds: a process that is refused again and again must not keep the thread busy.
const REST: Duration = Duration::from_millis(2);
/// How often what has ended is forgotten.
const SWEEP: Duration = Duration::from_secs(10);

/// The settings of the probes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which calls are seen.
    pub mode: Mode,
    /// The machine's procfs, of the first pid namespace.
    pub procfs: PathBuf,
    /// How long a workload is counted after it has left its devices.
    pub linger: Duration,
}

/// The running thread. Dropping it ends the thread within a moment; the probes end with it.
#[derive(Debug)]
pub struct CallWatch {
    stopping: Arc<AtomicBool>,
}

impl CallWatch {
    /// Starts the thread. The snapshot's call feed must have room. Whether the probes could be loaded is in the snapshot.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub fn start(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) -> io::Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        thread::Builder::new().name("call-watch".into()).spawn(move || {
            let panicked = faults.clone();
            let down = snapshot.clone();
            let work = std::panic::AssertUnwindSafe(|| watch(&settings, &snapshot, &faults, &stop));
            if std::panic::catch_unwind(work).is_err() {
                give_up(&down, &panicked, Reason::Panicked, &io::Error::other("the thread of the probes panicked"));
            }
        })?;
        Ok(Self { stopping })
    }
}

impl Drop for CallWatch {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

/// The probes see the pids of the first pid namespace, which are not those of the lists.
#[derive(Debug, thiserror::Error)]
#[error(
    "memory.probes needs the machine's pid namespace (hostPID: true, docker run --pid=host): the probes report the pids of \
     that namespace"
)]
struct ForeignPids;

fn watch(settings: &Settings, snapshot: &Snapshot, faults: &Faults, stopping: &AtomicBool) {
    if sees_host_processes(&settings.procfs) != Some(true) {
        return give_up(snapshot, faults, Reason::ForeignProcfs, &ForeignPids);
    }
    let probes = match Probes::load(cuda_probe::Settings::new(settings.mode)) {
        Ok(probes) => probes,
        Err(error) => return give_up(snapshot, faults, reason(&error), &error),
    };
    let epoll = match edges(&probes) {
        Ok(epoll) => epoll,
        Err(error) => return give_up(snapshot, faults, Reason::Unknown, &error),
    };
    let mut watch = Watch::new(settings, snapshot, faults, probes);
    let errors = watch.libraries.attach_installed(&mut watch.probes);
    if watch.fails(errors) {
        return;
    }
    while !stopping.load(Ordering::Relaxed) {
        let timeout = EpollTimeout::try_from(PERIOD).unwrap_or(EpollTimeout::ZERO);
        // A signal ends the wait early, and nothing else goes wrong with it.
        let _ = epoll.wait(&mut [EpollEvent::empty()], timeout);
        let began = Instant::now();
        if watch.round() {
            return;
        }
        // At most half of the time is work, unless a round takes longer than the ring may be left alone.
        thread::sleep(began.elapsed().clamp(REST, PERIOD));
    }
}

/// Becomes ready for each refusal: an edge, because the level stays up while any event is unread.
fn edges(probes: &Probes) -> io::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(probes.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?;
    Ok(epoll)
}

fn give_up(snapshot: &Snapshot, faults: &Faults, reason: Reason, error: &dyn std::error::Error) {
    faults.raise(Source::Probes, reason, None, error);
    let part = CallPart { state: CallState::Down(reason), ..CallPart::default() };
    snapshot.calls.store(Arc::new(part));
}

fn reason(error: &Error) -> Reason {
    match error {
        Error::Rights { .. } => Reason::NoPermission,
        Error::Dangerous { .. } | Error::KernelTooOld { .. } => Reason::NotSupported,
        Error::Library { .. } => Reason::Unreadable,
        _ => Reason::Unknown,
    }
}

struct Watch<'a> {
    settings: &'a Settings,
    snapshot: &'a Snapshot,
    faults: &'a Faults,
    probes: Probes,
    libraries: Libraries,
    account: Account,
    /// When nothing had been counted yet.
    since: SystemTime,
    lost: Lost,
    /// Calls whose threads have ended in them.
    ended: u64,
    /// The lost calls that were published last.
    published: Option<[u64; 3]>,
    /// Up to when the calls had returned when they were followed the last time.
    returned: Duration,
    followed: Instant,
    givers: Givers,
    sieve: Sieve,
    ticks: Ticks,
    swept: Instant,
}

impl<'a> Watch<'a> {
    fn new(settings: &'a Settings, snapshot: &'a Snapshot, faults: &'a Faults, probes: Probes) -> Self {
        Self {
            settings,
            snapshot,
            faults,
            probes,
            libraries: Libraries::new(settings.procfs.clone()),
            account: Account::new(settings.mode == Mode::All),
            since: SystemTime::now(),
            lost: Lost::default(),
            ended: 0,
            published: None,
            returned: Duration::ZERO,
            followed: Instant::now(),
            givers: Givers::new(settings.procfs.clone()),
            sieve: Sieve::default(),
            ticks: Ticks::now(),
            swept: Instant::now(),
        }
    }

    /// Reports what went wrong with libraries. Returns whether no library can be watched.
    fn fails(&self, errors: Vec<Error>) -> bool {
        let is_fatal = |error: &&Error| !matches!(error, Error::Library { .. });
        if let Some(error) = errors.iter().find(is_fatal) {
            give_up(self.snapshot, self.faults, reason(error), error);
            return true;
        }
        errors.iter().for_each(|error| self.faults.raise(Source::Probes, reason(error), None, error));
        false
    }

    /// Reads what has happened since the last round. Returns whether to give up.
    fn round(&mut self) -> bool {
        let clocks = Clocks::now();
        self.ticks = Ticks::now();
        let follows = self.settings.mode == Mode::All && self.followed.elapsed() >= PERIOD * 9 / 10;
        // Before the events are read: of a call that returns meanwhile, there is an event.
        let giving = if follows { self.givers.processes(&self.probes.giving()) } else { HashSet::new() };
        let mut listed = false;
        while let Some(list) = self.snapshot.call_feed.next_list() {
            if let Some((began, complete)) = list.began.zip(list.at) {
                self.account.list(&list, Span { start: clocks.of(began), end: clocks.of(complete) });
                listed = true;
            }
        }
        let known = self.read_events();
        let machine = View::new(&self.settings.procfs, self.snapshot);
        if follows {
            self.followed = clocks.instant;
            // Up to the time of the events that were read the last time: they are all known by now.
            let returned = std::mem::replace(&mut self.returned, clocks.monotonic);
            if self.has_lost_more() {
                self.account.lose(Clocks::now().monotonic);
            }
            let taken = self.account.follow(returned, giving, &machine);
            let (feed, now) = (&self.snapshot.call_feed, clocks.instant);
            taken.holders.into_iter().for_each(|peak| feed.add_peak(peak, now));
            for (device, bytes) in taken.gpus {
                feed.raise_gpu(&self.account.places.device(device).gpu, bytes, now);
            }
        }
        let refusals = self.account.settle(known, clocks.monotonic, &machine);
        for refusal in self.sieve.pass(refusals, clocks.monotonic) {
            self.snapshot.feed.add_failure(failure(&refusal, &clocks));
        }
        if self.swept.elapsed() >= SWEEP {
            self.swept = Instant::now();
            self.account.sweep(self.settings.linger, &machine);
            self.ended += self.probes.sweep(&self.settings.procfs).ended;
        }
        let errors = self.attach(listed);
        if self.fails(errors) {
            return true;
        }
        self.publish();
        false
    }

    /// Reads the events. Returns the requests whose outcome is known.
    fn read_events(&mut self) -> Vec<Request> {
        let (account, procfs, clock) = (&mut self.account, &self.settings.procfs, &self.ticks);
        let mut ids: HashMap<u32, ProcessId> = HashMap::new();
        let mut known = Vec::new();
        self.probes.drain(|event| {
            let gone = ProcessId { pid: event.process, start_ticks: None };
            let id = *ids.entry(event.process).or_insert_with(|| process(procfs, event.process).unwrap_or(gone));
            known.extend(account.call(event, clock.caller(id, event.start)));
        });
        known
    }

    fn attach(&mut self, listed: bool) -> Vec<Error> {
        let processes = listed.then(|| self.account.places.processes());
        self.libraries.attach(&mut self.probes, processes)
    }

    /// Whether calls were lost since the last round.
    fn has_lost_more(&mut self) -> bool {
        let lost = self.probes.lost();
        std::mem::replace(&mut self.lost, lost).calls() < lost.calls()
    }

    /// Publishes what has changed.
    fn publish(&mut self) {
        let Lost { ring_full, return_without_entry, never_returned, unreadable, .. } = self.probes.lost();
        let lost = [ring_full + unreadable, return_without_entry, never_returned + self.ended];
        if self.published.replace(lost) == Some(lost) && !self.account.has_news() {
            return;
        }
        let (sees_all, counted_since) = (self.settings.mode == Mode::All, Some(self.since));
        let mut part = CallPart { state: CallState::Up, sees_all, counted_since, ..CallPart::default() };
        self.account.show(&mut part);
        for (reason, count) in [LostCalls::RingFull, LostCalls::NoEntry, LostCalls::NoReturn].into_iter().zip(lost) {
            part.lost[reason as usize] = count;
        }
        self.snapshot.calls.store(Arc::new(part));
    }
}

fn failure(refusal: &Refusal, clocks: &Clocks) -> FailedAllocation {
    FailedAllocation {
        process: refusal.process,
        at: clocks.instant(refusal.at),
        device: refusal.device.uuid().into(),
        framework: None,
        requested: refusal.asked,
        free: None,
        total: None,
        allocated: None,
        reserved: None,
        largest_free_block: None,
        snapshot_path: None,
        asked_by: None,
        frames: Vec::new(),
        sites: None,
    }
}
