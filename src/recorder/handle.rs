//! The running recorder: its thread, and the requests that it serves.

mod answer;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

pub use self::answer::History;
use super::disk::DiskWriter;
use super::disk::report_file::{self, ReportFileSettings};
use super::disk::store::{self, StoreSettings};
use super::history::answers::{self, HistoryQuery};
use super::history::ended_log::EndedLog;
use super::history::event::Event;
use super::history::exit_status::ExitWatch;
use super::history::incident::Incident;
use super::history::series::{Micros, SECOND};
use super::history::visits::Visits;
use super::incidents::{Incidents, Moment};
use super::jobs::{JobReport, Jobs, ReportSettings};
use super::ledger::Ledger;
use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{RecorderPart, Snapshot};

/// How often the recorder collects what the lanes passed on. The feed has room for the samples of two periods.
pub const PERIOD: Duration = Duration::from_millis(250);
/// How often old entries are dropped.
const AGE_EVERY: Micros = SECOND;
/// How long the recorder keeps checking how a process ended, because the parent may be slow to wait for the process.
const EXIT_WITHIN: Micros = 10 * SECOND;
/// How long the log line of a process that ended waits for its exit status.
const LOGGED_WITHIN: Micros = SECOND;
/// The maximum number of reports from earlier runs that are read at startup.
const RESTORED_REPORTS: usize = 256;

/// The settings of the recorder.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Bytes: the memory that histories, events and incidents may use.
    pub memory_limit: usize,
    /// Where incidents are written; `None` keeps them in memory only.
    pub store: Option<StoreSettings>,
    /// How the reports about workloads are made.
    pub reports: ReportSettings,
    /// Where those reports are written; `None` keeps them in memory only.
    pub report_file: Option<ReportFileSettings>,
    /// Whether a line is logged for each process that ends.
    pub log_ended: bool,
    /// The machine's name.
    pub host: Option<String>,
}

/// The recorder. Dropping it leaves its thread running; [`Recorder::stop`] ends it.
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the recorder's thread and its callers share. The lanes never lock it.
#[derive(Debug)]
pub(super) struct Shared {
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    pub(super) memory: Mutex<Memory>,
    store: Mutex<Option<DiskWriter<Incident>>>,
    report_file: Mutex<Option<DiskWriter<JobReport>>>,
    log_ended: bool,
    memory_limit: usize,
    /// When nothing had been counted yet.
    started: SystemTime,
    stopping: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Memory {
    pub(super) ledger: Ledger,
    incidents: Incidents,
}

impl Recorder {
    /// Starts the recorder's thread.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub fn start(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) -> io::Result<Arc<Self>> {
        let mut incidents = Incidents::new(settings.host.clone(), settings.memory_limit);
        let mut cut = Vec::new();
        let store = match settings.store {
            Some(store) => {
                let room = incidents.room();
                let restore = |incident, bytes| cut.extend(incidents.restore(incident, bytes));
                Some(store::open(store, room, faults.clone(), restore)?)
            }
            None => None,
        };
        cut.iter().for_each(|incident| store.iter().for_each(|store| store.write(incident)));
        let mut ledger = Ledger::new(Instant::now());
        ledger.jobs = Jobs::new(&settings.reports, settings.host);
        let report_file = match settings.report_file {
            Some(file) => {
                let (file, earlier) = report_file::open(file, RESTORED_REPORTS, faults.clone())?;
                ledger.jobs.restore(earlier);
                Some(file)
            }
            None => None,
        };
        let shared = Arc::new(Shared {
            snapshot,
            faults,
            memory: Mutex::new(Memory { ledger, incidents }),
            store: Mutex::new(store),
            report_file: Mutex::new(report_file),
            log_ended: settings.log_ended,
            memory_limit: settings.memory_limit,
            started: SystemTime::now(),
            stopping: AtomicBool::new(false),
        });
        let work = shared.clone();
        let thread = thread::Builder::new().name("recorder".into()).spawn(move || work.run())?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    /// Ends the thread, which first collects what the lanes passed on and writes the incidents in progress.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the recorder panicked");
            }
        }
        let store = self.shared.store.lock().take();
        store.into_iter().for_each(DiskWriter::close);
        let reports = self.shared.report_file.lock().take();
        reports.into_iter().for_each(DiskWriter::close);
    }

    /// The recorded values of a time span, thinned so that the minimum and the maximum of each part are kept.
    pub fn history(&self, query: &HistoryQuery) -> History {
        History::new(self.shared.clone(), query)
    }

    /// The times at which the remembered processes were on their GPUs.
    pub fn visits(&self) -> Visits {
        let memory = self.shared.memory.lock();
        Visits::new(memory.ledger.histories(), memory.ledger.now())
    }

    /// The latest events of a time span (in Unix seconds), at most `limit` of them, oldest first.
    pub fn events(&self, from: Option<f64>, to: Option<f64>, limit: usize) -> Vec<Event> {
        let memory = self.shared.memory.lock();
        answers::events(memory.ledger.histories(), from, to, limit, memory.ledger.now())
    }

    /// The incidents that are kept, oldest first.
    pub fn incidents(&self) -> Vec<Arc<Incident>> {
        self.shared.memory.lock().incidents.all().cloned().collect()
    }

    /// The incident with this id.
    pub fn incident(&self, id: &str) -> Option<Arc<Incident>> {
        let memory = self.shared.memory.lock();
        memory.incidents.all().find(|incident| incident.id == id).cloned()
    }

    /// The latest reports about a job and a workload, at most `limit` of them, newest first; `None` accepts any. Reports
    /// that are not final come first.
    pub fn reports(&self, job: Option<&str>, workload: Option<&str>, limit: usize) -> Vec<Arc<JobReport>> {
        let memory = self.shared.memory.lock();
        memory.ledger.jobs.latest(job, workload, limit, memory.ledger.now())
    }

    /// Records an incident now, for the fullest GPU. Returns `None` if there is no GPU.
    pub fn record(&self) -> Option<Arc<Incident>> {
        let mut memory = self.shared.memory.lock();
        let Memory { ledger, incidents } = &mut *memory;
        let now = ledger.now();
        let trigger = ledger.request(now.micros)?;
        match incidents.record(trigger, ledger.histories(), now, self.shared.simulated())? {
            Moment::New(incident) => {
                ledger.note_incident(&incident, now);
                self.shared.publish(ledger, incidents);
                Some(incident)
            }
            Moment::Part(incident) => Some(incident),
            Moment::Repeat => None,
        }
    }
}

/// The state that only the thread uses.
#[derive(Debug, Default)]
struct Work {
    log: EndedLog,
    exits: ExitWatch,
    /// When old entries were last dropped.
    aged: Micros,
}

impl Shared {
    fn run(&self) {
        let mut work = Work::default();
        while !self.stopping.load(Ordering::Relaxed) {
            let round = std::panic::AssertUnwindSafe(|| self.round(&mut work, LOGGED_WITHIN));
            if std::panic::catch_unwind(round).is_err() {
                let error = io::Error::other("the recorder panicked and continues with the next round");
                self.faults.report(Source::Recorder, Reason::Panicked, None, &error);
            }
            thread::park_timeout(PERIOD);
        }
        self.round(&mut work, 0);
        let mut memory = self.memory.lock();
        let now = memory.ledger.now();
        memory.ledger.jobs.stop(now);
        let reports = memory.ledger.jobs.take_complete();
        drop(memory);
        self.write_reports(&reports);
        // Incidents in progress are written with what is known so far.
        let mut memory = self.memory.lock();
        let Memory { ledger, incidents } = &mut *memory;
        let unfinished = incidents.finish(ledger.histories(), now, self.simulated());
        drop(memory);
        unfinished.iter().for_each(|incident| self.write(incident));
    }

    /// Collects what the lanes passed on, records and completes incidents, and publishes what the metrics show.
    /// `patience`: how long the log line of a process that ended waits for its exit status.
    fn round(&self, work: &mut Work, patience: Micros) {
        let feed = &self.snapshot.feed;
        let mut memory = self.memory.lock();
        let Memory { ledger, incidents } = &mut *memory;
        let now = ledger.now();
        // Taken before the samples, so that every sample from before a list is known when the list is recorded.
        let lists: Vec<_> = std::iter::from_fn(|| feed.next_list()).collect();
        // Failures come first, so that when the lists show the end of a process, its failure is already known.
        while let Some(failed) = feed.next_failure() {
            ledger.fail(failed);
        }
        while let Some(sample) = feed.next_sample() {
            ledger.sample(&sample);
        }
        lists.iter().for_each(|list| ledger.list(list, now));
        ledger.take_started().into_iter().for_each(|process| work.exits.begin(process));
        ledger.add_exits(now.micros.saturating_sub(EXIT_WITHIN), |process| work.exits.exit(process));
        ledger.resolve_failures(now);
        ledger.compare_snapshot(&self.snapshot, now);
        let simulated = self.simulated();
        let mut to_write = Vec::new();
        let mut has_new = false;
        for trigger in ledger.take_triggers() {
            let moment = incidents.record(trigger, ledger.histories(), now, simulated);
            has_new |= matches!(moment, Some(Moment::New(_) | Moment::Repeat));
            if let Some(Moment::New(incident)) = moment {
                announce(&incident);
                ledger.note_incident(&incident, now);
                to_write.push(incident);
            }
        }
        to_write.extend(incidents.complete(ledger.histories(), now, simulated));
        if now.micros.saturating_sub(work.aged) >= AGE_EVERY {
            work.aged = now.micros;
            let present: HashSet<_> = ledger.present(now.micros.saturating_sub(EXIT_WITHIN)).collect();
            work.exits.retain(|process| present.contains(process));
            incidents.forget_mig(|uuid| ledger.histories().knows_mig(uuid));
            ledger.age(now);
        }
        ledger.bound(now, self.memory_limit.saturating_sub(feed.bytes() + incidents.bytes()));
        if has_new || work.aged == now.micros {
            self.publish(ledger, incidents);
        }
        let gone = ledger.take_gone(now.micros.saturating_sub(patience));
        let reports = ledger.jobs.take_complete();
        drop(memory);
        if self.log_ended {
            work.log.write(&gone, now.micros);
        }
        to_write.iter().for_each(|incident| self.write(incident));
        self.write_reports(&reports);
    }

    fn write_reports(&self, reports: &[Arc<JobReport>]) {
        if let Some(file) = &*self.report_file.lock() {
            reports.iter().for_each(|report| file.write(report));
        }
    }

    /// Publishes what the metrics show. Called with the lock held whenever an incident is added, which can remove
    /// another one: the metrics name an incident only while the API has it.
    fn publish(&self, ledger: &Ledger, incidents: &Incidents) {
        let feed = &self.snapshot.feed;
        self.snapshot.recorder.store(Arc::new(RecorderPart {
            on: true,
            bytes: (ledger.bytes() + incidents.bytes() + feed.bytes()) as u64,
            dropped: ledger.dropped() + feed.dropped(),
            incidents: incidents.counts().collect(),
            shortages: ledger.jobs.shortages(ledger.now()),
            counted_since: Some(self.started),
        }));
    }

    fn write(&self, incident: &Arc<Incident>) {
        if let Some(store) = &*self.store.lock() {
            store.write(incident);
        }
    }

    fn simulated(&self) -> bool {
        self.snapshot.driver.load().simulated
    }
}

fn announce(incident: &Incident) {
    let Incident { id, kind, gpu, summary, .. } = incident;
    tracing::info!(
        id,
        kind = kind.label(),
        gpu = gpu.index,
        uuid = gpu.uuid,
        mig_uuid = gpu.mig_uuid(),
        "incident: {summary}"
    );
}
