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
    ledger: Mutex<Ledger>,
    store: Mutex<Option<DiskWriter<Incident>>>,
    report_file: Mutex<Option<DiskWriter<JobReport>>>,
    log_ended: bool,
    memory_limit: usize,
    /// When nothing had been counted yet.
    started: SystemTime,
    stopping: AtomicBool,
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
        let mut jobs = Jobs::new(&settings.reports, settings.host);
        let report_file = match settings.report_file {
            Some(file) => {
                let (file, earlier) = report_file::open(file, RESTORED_REPORTS, faults.clone())?;
                jobs.restore(earlier);
                Some(file)
            }
            None => None,
        };
        let shared = Arc::new(Shared {
            snapshot,
            faults,
            ledger: Mutex::new(Ledger::new(Instant::now(), incidents, jobs)),
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
        let ledger = self.shared.ledger.lock();
        Visits::new(ledger.histories(), ledger.now())
    }

    /// The latest events of a time span (in Unix seconds), at most `limit` of them, oldest first.
    pub fn events(&self, from: Option<f64>, to: Option<f64>, limit: usize) -> Vec<Event> {
        let ledger = self.shared.ledger.lock();
        answers::events(ledger.histories(), from, to, limit, ledger.now())
    }

    /// The incidents that are kept, oldest first.
    pub fn incidents(&self) -> Vec<Arc<Incident>> {
        self.shared.ledger.lock().incidents().all().cloned().collect()
    }

    /// The incident with this id.
    pub fn incident(&self, id: &str) -> Option<Arc<Incident>> {
        let ledger = self.shared.ledger.lock();
        ledger.incidents().all().find(|incident| incident.id == id).cloned()
    }

    /// The latest reports about a job and a workload, at most `limit` of them, newest first; `None` accepts any.
    /// Reports that are not final come first.
    pub fn reports(&self, job: Option<&str>, workload: Option<&str>, limit: usize) -> Vec<Arc<JobReport>> {
        self.shared.ledger.lock().reports(job, workload, limit)
    }

    /// Records an incident now, for the fullest GPU. Returns `None` if there is no GPU.
    pub fn record(&self) -> Option<Arc<Incident>> {
        let mut ledger = self.shared.ledger.lock();
        match ledger.record_on_demand(self.shared.simulated())? {
            Moment::New(incident) => {
                self.shared.publish(&ledger);
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
                self.faults.raise(Source::Recorder, Reason::Panicked, None, &error);
            }
            thread::park_timeout(PERIOD);
        }
        self.round(&mut work, 0);
        // Incidents in progress are written with what is known so far.
        let (reports, incidents) = self.ledger.lock().finish(self.simulated());
        self.write_reports(&reports);
        self.write_incidents(&incidents);
    }

    /// Collects what the lanes passed on, records and completes incidents, and publishes what the metrics show.
    /// `patience`: how long the log line of a process that ended waits for its exit status.
    fn round(&self, work: &mut Work, patience: Micros) {
        let feed = &self.snapshot.feed;
        let mut ledger = self.ledger.lock();
        let now = ledger.now();
        ledger.read(feed, now);
        ledger.take_started().into_iter().for_each(|process| work.exits.begin(process));
        ledger.add_exits(now.micros.saturating_sub(EXIT_WITHIN), |process| work.exits.exit(process));
        ledger.resolve_failures(now);
        ledger.compare_snapshot(&self.snapshot, now);
        let round = ledger.record(now, self.simulated());
        round.new.iter().for_each(|incident| announce(incident));
        if now.micros.saturating_sub(work.aged) >= AGE_EVERY {
            work.aged = now.micros;
            let present: HashSet<_> = ledger.present(now.micros.saturating_sub(EXIT_WITHIN)).collect();
            work.exits.retain(|process| present.contains(process));
            ledger.age(now);
        }
        ledger.bound(now, self.memory_limit.saturating_sub(feed.bytes()));
        if round.has_counted || work.aged == now.micros {
            self.publish(&ledger);
        }
        let gone = ledger.take_gone(now.micros.saturating_sub(patience));
        let reports = ledger.take_reports();
        drop(ledger);
        if self.log_ended {
            work.log.write(&gone, now.micros);
        }
        self.write_incidents(&round.new);
        self.write_incidents(&round.changed);
        self.write_reports(&reports);
    }

    fn write_reports(&self, reports: &[Arc<JobReport>]) {
        if let Some(file) = &*self.report_file.lock() {
            reports.iter().for_each(|report| file.write(report));
        }
    }

    /// Publishes what the metrics show. Called with the lock held whenever an incident is added, which can remove
    /// another one: the metrics name an incident only while the API has it.
    fn publish(&self, ledger: &Ledger) {
        let feed = &self.snapshot.feed;
        self.snapshot.recorder.store(Arc::new(RecorderPart {
            on: true,
            bytes: (ledger.bytes() + feed.bytes()) as u64,
            dropped: ledger.dropped() + feed.dropped(),
            incidents: ledger.incidents().counts().collect(),
            shortages: ledger.shortages(),
            counted_since: Some(self.started),
        }));
    }

    fn write_incidents(&self, incidents: &[Arc<Incident>]) {
        if let Some(store) = &*self.store.lock() {
            incidents.iter().for_each(|incident| store.write(incident));
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
