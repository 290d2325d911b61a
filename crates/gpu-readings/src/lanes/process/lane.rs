//! The lane itself: when it makes a pass over the GPUs, and what a pass does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::accounting::Accounting;
use super::driver_limits::DriverLimits;
use super::guests::Guests;
use super::layout::LayoutCheck;
use super::limits::LimitSources;
use super::list_cache::ListCache;
use super::list_source::ListSource;
use super::retention::Retention;
use super::state::{Folded, ProcessLaneState};
use crate::attribution::Attribution;
use crate::faults::{Faults, Reason, Source};
use crate::lanes::guarded::{Caller, GuardedDevice, Unavailable};
use crate::lanes::memory::Link;
use crate::lanes::schedule::{HEARTBEAT, Ticker, rest_after, time_for_readings};
use crate::lanes::session::Session;
use crate::lanes::telemetry::{self, Telemetry, Told};
use crate::lanes::wake::WakeBits;
use crate::lanes::watch::{Role, Superseded, Watch};
use crate::lanes::worker::LaneTask;
use crate::nvml::ProcessBuffer;
use crate::snapshot::{Gpu, Lane, ProcessPart, Snapshot, longest_gap};

/// The settings of the lane.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The longest time between two reads of the process lists.
    pub interval: Duration,
    /// The length of the peak window.
    pub peak_window: Duration,
    /// How long the peaks of a process are kept after its end, in addition to one peak window.
    pub linger: Duration,
    /// The maximum number of processes per GPU.
    pub series_limit: usize,
    /// The telemetry readings between two passes; `None`: only memory and processes are read.
    pub telemetry: Option<telemetry::Settings>,
}

/// The lane. It outlives its threads and its sessions.
#[derive(Debug)]
pub(crate) struct ProcessLane {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    link: Arc<Link>,
    state: Mutex<ProcessLaneState>,
    /// By position. A thread takes what it needs for the time of a pass, so that none is locked during a driver call; what a
    /// thread that hangs has taken is forgotten.
    lists: Mutex<Vec<Option<GpuLists>>>,
    /// The totals of the profiling counters, which are sampled between two passes.
    profiling: Mutex<telemetry::Totals>,
    /// The energy of the GPUs, whose power is read between two passes.
    energies: Mutex<telemetry::Energies>,
}

/// What the lane remembers about one GPU between passes of a session.
#[derive(Debug, Default)]
struct GpuLists {
    lists: ListCache,
    accounting: Accounting,
    limits: DriverLimits,
    guests: Guests,
    layout: LayoutCheck,
}

impl ProcessLane {
    pub(crate) fn new(
        settings: Settings,
        attribution: Attribution,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
        link: Arc<Link>,
    ) -> Self {
        let Settings { interval, peak_window, linger, series_limit: limit, .. } = settings;
        let retention = Retention { peak_window, linger, limit };
        let state = ProcessLaneState::new(attribution, faults.clone(), retention, longest_gap(interval));
        Self {
            settings,
            snapshot,
            faults,
            link,
            state: Mutex::new(state),
            lists: Mutex::default(),
            profiling: Mutex::default(),
            energies: Mutex::default(),
        }
    }

    fn work<'s>(&self, caller: Caller<'s>, telemetry: &mut Option<Telemetry<'s>>) -> Result<(), Superseded> {
        let session = caller.session;
        let mut buffer = ProcessBuffer::default();
        let mut rested = Instant::now();
        let mut heartbeat = Ticker::starting(self.settings.interval, rested);
        while !session.ending() && !caller.gives_back() {
            let now = Instant::now();
            let readings = telemetry.iter().map(|telemetry| telemetry.next(now));
            let deadline = readings.fold(heartbeat.next().min(now + HEARTBEAT), Instant::min);
            if deadline > now {
                caller.watch.rest();
                std::thread::sleep(deadline.min(rested).saturating_duration_since(now));
            }
            // While the lane rests, wake-ups from the memory lane stay pending.
            let moved =
                if Instant::now() < rested { 0 } else { self.link.moved.wait_until(caller.wake_bits(), deadline) };
            if session.ending() {
                break;
            }
            caller.watch.begin_round();
            let began = Instant::now();
            if caller.role() == Role::Shared {
                self.snapshot.vitals.beat(Lane::Process, began);
                self.snapshot.vitals.beat(Lane::Telemetry, began);
            }
            let due = heartbeat.take(began);
            caller.add_missed(&self.snapshot.vitals, Lane::Process, due.unwrap_or(0));
            if due.is_some() || moved != 0 {
                self.pass(caller, &mut buffer, moved, due.is_some())?;
                let took = began.elapsed();
                rested = Instant::now() + rest_after(took);
                if caller.role() == Role::Shared {
                    self.snapshot.vitals.observe(Lane::Process, took);
                }
            }
            if let Some(telemetry) = telemetry {
                self.take_readings(caller, telemetry, began)?;
            }
        }
        Ok(())
    }

    /// Takes one telemetry reading after the pass that began at `pass_began`, or several if the pass was long.
    fn take_readings<'s>(
        &self,
        caller: Caller<'s>,
        telemetry: &mut Telemetry<'s>,
        pass_began: Instant,
    ) -> Result<(), Superseded> {
        let began = Instant::now();
        let time = time_for_readings(began.duration_since(pass_began));
        loop {
            if let Some(told) = telemetry.step(caller)? {
                let mut state = self.state.lock();
                match told {
                    Told::Work(work) => state.fold_work(&work),
                    Told::Spent(spent) => state.fold_energy(&spent),
                }
                self.publish(&state);
            }
            let now = Instant::now();
            if caller.session.ending() || now.duration_since(began) >= time || telemetry.next(now) > now {
                return Ok(());
            }
        }
    }

    /// Lists the processes of the GPUs whose bits are set in `moved`, and publishes them. A `whole` pass covers all
    /// GPUs and all their lists. GPUs that another thread serves are left out.
    fn pass(&self, caller: Caller<'_>, buffer: &mut ProcessBuffer, moved: u64, whole: bool) -> Result<(), Superseded> {
        for position in 0..caller.session.driver.gpus().len() {
            let wanted = whole || moved & WakeBits::bit(position) != 0;
            if !wanted || !caller.serves(position) {
                continue;
            }
            let device = match caller.device(position) {
                Ok(device) => device,
                Err(Unavailable::Busy) => {
                    self.state.lock().assume_alive(position);
                    continue;
                }
                Err(Unavailable::Stalled | Unavailable::NotOpened) => {
                    // The GPU's memory and processes cannot be read, however often the lanes try, so the processes are not
                    // counted.
                    self.state.lock().alive[position] = 0;
                    continue;
                }
            };
            let mut kept = self.lists.lock()[position].take().unwrap_or_default();
            let alive = self.list(&device, &mut kept, buffer, whole)?;
            if caller.session.ending() {
                return Ok(());
            }
            if alive.is_none() {
                self.state.lock().assume_alive(position);
            }
            if whole && alive.is_some() {
                self.account(&device, &mut kept.accounting)?;
                self.refresh_limits(&device, &mut kept.limits)?;
            }
            self.lists.lock()[position] = Some(kept);
        }
        let mut state = self.state.lock();
        // A thread with one GPU has identified no process of the others.
        if whole && caller.role() == Role::Shared {
            state.sweep();
        }
        self.publish(&state);
        let alive = state.alive();
        if self.link.processes.swap(alive, Ordering::Relaxed) == 0 && alive > 0 {
            self.link.awake.notify(u64::MAX);
        }
        Ok(())
    }

    /// Lists the processes of one GPU. Returns their number; `None` if the list was refused or the session ends.
    fn list(
        &self,
        device: &GuardedDevice<'_>,
        kept: &mut GpuLists,
        buffer: &mut ProcessBuffer,
        whole: bool,
    ) -> Result<Option<usize>, Superseded> {
        let (source, total, observer) = (ListSource::of(*device), self.total(device), &self.snapshot.observer);
        if whole {
            kept.guests.refresh(total, device, &self.faults)?;
        }
        loop {
            let list = kept.lists.read(&source, buffer, whole, total, &self.faults)?;
            let Some(list) = list else { return Ok(None) };
            observer.iter().for_each(|observer| observer.listed(device.gpu(), list.at, &list.reads()));
            let layout_holds = kept.layout.holds_for(&list, device, &self.faults)?;
            if device.session.ending() {
                return Ok(None);
            }
            if let Some(pid) = list.implausible {
                self.report_implausible(device.gpu(), pid);
            }
            let limits = LimitSources::load(&self.snapshot, device.gpu(), kept.limits.current.clone());
            let mut state = self.state.lock();
            while let Some(peak) = self.snapshot.call_feed.next_peak() {
                state.see_call(&peak, list.at);
            }
            match state.fold_list(device.position(), device.gpu(), list, layout_holds, &limits, &kept.guests.known) {
                Folded::Alive(alive) => {
                    state.alive[device.position()] = alive;
                    let shown = &state.shown[device.position()];
                    self.snapshot.feed.add_list(shown);
                    self.snapshot.call_feed.add_list(shown);
                    observer.iter().for_each(|observer| observer.attributed(shown));
                    return Ok(Some(alive));
                }
                // The list is read again, now that the previous process has been recorded as ended.
                Folded::PidReused => kept.layout = LayoutCheck::default(),
            }
        }
    }

    /// Reads the driver's own maxima, if accounting mode is on.
    fn account(&self, device: &GuardedDevice<'_>, accounting: &mut Accounting) -> Result<(), Superseded> {
        if !accounting.is_on(device, &self.faults)? {
            return Ok(());
        }
        let (gpu, total) = (device.gpu(), self.total(device));
        let pids = self.state.lock().pids(gpu);
        for (pid, peak) in accounting.peaks(&pids, device, &self.faults)? {
            if total.is_some_and(|total| peak > total) {
                self.report_implausible(gpu, pid);
            } else {
                self.state.lock().raise(gpu, pid, peak);
            }
        }
        Ok(())
    }

    /// Reads the limits that the driver keeps for the workloads' cgroups, and applies those that have changed.
    fn refresh_limits(&self, device: &GuardedDevice<'_>, limits: &mut DriverLimits) -> Result<(), Superseded> {
        if !limits.is_possible(device) {
            return Ok(());
        }
        let (gpu, total) = (device.gpu(), self.total(device));
        let cgroups = self.state.lock().cgroups(gpu);
        if limits.refresh(&cgroups, total, device, &self.faults)? {
            let limits = LimitSources::load(&self.snapshot, gpu, limits.current.clone());
            self.state.lock().measure(gpu, &limits);
        }
        Ok(())
    }

    /// The total memory of a GPU, if it is known. The last published values may come from an earlier session, in
    /// which the GPUs had different positions.
    fn total(&self, device: &GuardedDevice<'_>) -> Option<u64> {
        let memory = self.snapshot.memory.load();
        let shown = memory.gpus.get(device.position()).filter(|memory| Arc::ptr_eq(&memory.gpu, device.gpu()));
        shown?.total()
    }

    fn report_implausible(&self, gpu: &Gpu, pid: u32) {
        let error = std::io::Error::other(format!("the driver reports more memory for process {pid} than the GPU has"));
        self.faults.raise(Source::Process, Reason::Implausible, Some(gpu.index), &error);
    }

    fn publish(&self, state: &ProcessLaneState) {
        self.snapshot.processes.store(Arc::new(ProcessPart { gpus: state.shown.clone() }));
    }
}

impl LaneTask for ProcessLane {
    /// Marks the processes of all GPUs as not read yet.
    fn resume(&self, session: &Session) {
        self.state.lock().resume(session.driver.gpus());
        *self.lists.lock() = session.driver.gpus().map(|_| None).collect();
    }

    fn run(&self, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        let Self { settings, snapshot, faults, profiling, energies, .. } = self;
        let begin = |settings| Telemetry::new(settings, snapshot, faults, profiling, energies, session);
        let mut telemetry = settings.telemetry.as_ref().map(begin);
        let caller = Caller::new(session, watch);
        self.work(caller, &mut telemetry)?;
        // A driver that fails or is to be closed is not asked any more.
        if session.ending() && !session.is_replaced() {
            return Ok(());
        }
        telemetry.iter_mut().try_for_each(|telemetry| telemetry.finish(caller))
    }
}
