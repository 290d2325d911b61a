//! The running recorder: its thread, and the requests that it serves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::disk::report_file::{self, ReportFileSettings};
use super::disk::store::{self, StoreSettings};
use super::disk::{DiskWriter, Writable};
use super::history::answers::{self, Drawn, Plan};
use super::history::ended_log::EndedLog;
use super::history::{Event, HistoryQuery, HistorySeries, Incident, Micros, SECOND, Visits};
use super::incidents::{Incidents, Moment};
use super::jobs::{JobReport, Jobs, ReportSettings};
use super::ledger::Ledger;
use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{RecorderPart, Snapshot};

/// How often the recorder collects what the lanes passed on. The feed has room for the samples of two periods.
pub const PERIOD: Duration = Duration::from_millis(250);
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
        let room = incidents.room;
        let restore = |incident, bytes| cut.extend(incidents.restore(incident, bytes));
        let store = settings.store.map(|store| store::open(store, room, faults.clone(), restore)).transpose()?;
        cut.iter().for_each(|incident| store.iter().for_each(|store| store.write(incident)));
        let mut jobs = Jobs::new(&settings.reports, settings.host);
        let file = settings.report_file.map(|file| report_file::open(file, RESTORED_REPORTS, faults.clone()));
        let (report_file, earlier) = file.transpose()?.unzip();
        jobs.restore(earlier.unwrap_or_default());
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
        let ledger = self.shared.ledger.lock();
        let plan = answers::plan(&ledger.histories, query, ledger.now());
        History { shared: self.shared.clone(), plan }
    }

    /// The times at which the remembered processes were on their GPUs.
    pub fn visits(&self) -> Visits {
        let ledger = self.shared.ledger.lock();
        Visits::new(&ledger.histories, ledger.now())
    }

    /// The latest events of a time span (in Unix seconds), at most `limit` of them, oldest first.
    pub fn events(&self, from: Option<f64>, to: Option<f64>, limit: usize) -> Vec<Event> {
        let ledger = self.shared.ledger.lock();
        answers::events(&ledger.histories, from, to, limit, ledger.now())
    }

    /// The incidents that are kept, oldest first.
    pub fn incidents(&self) -> Vec<Arc<Incident>> {
        self.shared.ledger.lock().incidents.all().cloned().collect()
    }

    /// The incident with this id.
    pub fn incident(&self, id: &str) -> Option<Arc<Incident>> {
        let ledger = self.shared.ledger.lock();
        ledger.incidents.all().find(|incident| incident.id == id).cloned()
    }

    /// The latest reports about a job and a workload, at most `limit` of them, newest first; `None` accepts any.
    /// Reports that are not final come first.
    pub fn reports(&self, job: Option<&str>, workload: Option<&str>, limit: usize) -> Vec<Arc<JobReport>> {
        let ledger = self.shared.ledger.lock();
        ledger.jobs.latest(job, workload, limit, ledger.now())
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

impl Shared {
    fn run(&self) {
        let mut log = EndedLog::default();
        while !self.stopping.load(Ordering::Relaxed) {
            let round = std::panic::AssertUnwindSafe(|| self.round(&mut log, LOGGED_WITHIN));
            if std::panic::catch_unwind(round).is_err() {
                let error = io::Error::other("the recorder panicked and continues with the next round");
                self.faults.raise(Source::Recorder, Reason::Panicked, None, &error);
            }
            thread::park_timeout(PERIOD);
        }
        self.round(&mut log, 0);
        // Incidents in progress are written with what is known so far.
        let (reports, incidents) = self.ledger.lock().finish(self.simulated());
        write(&self.report_file, &reports);
        write(&self.store, &incidents);
    }

    /// Does a round of the ledger, and logs, publishes and writes what it returns. `patience`: how long the log line of
    /// a process that ended waits for its exit status.
    fn round(&self, log: &mut EndedLog, patience: Micros) {
        let mut ledger = self.ledger.lock();
        let round = ledger.round(&self.snapshot, self.memory_limit, patience);
        round.new.iter().for_each(|incident| announce(incident));
        if round.is_news {
            self.publish(&ledger);
        }
        let now = ledger.now();
        drop(ledger);
        if self.log_ended {
            log.write(&round.gone, now.micros);
        }
        write(&self.store, &round.new);
        write(&self.store, &round.changed);
        write(&self.report_file, &round.reports);
    }

    /// Publishes what the metrics show. Called with the lock held whenever an incident is added, which can remove
    /// another one: the metrics name an incident only while the API has it.
    fn publish(&self, ledger: &Ledger) {
        let feed = &self.snapshot.feed;
        self.snapshot.recorder.store(Arc::new(RecorderPart {
            on: true,
            bytes: (ledger.bytes() + feed.bytes()) as u64,
            dropped: ledger.dropped() + feed.dropped(),
            incidents: ledger.incidents.counts().collect(),
            shortages: ledger.jobs.shortages(ledger.now()),
            counted_since: Some(self.started),
        }));
    }

    fn simulated(&self) -> bool {
        self.snapshot.driver.load().simulated
    }
}

fn write<T: Writable>(writer: &Mutex<Option<DiskWriter<T>>>, items: &[Arc<T>]) {
    if let Some(writer) = &*writer.lock() {
        items.iter().for_each(|item| writer.write(item));
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

/// The answer to a [`HistoryQuery`]: an iterator over its series. Each one is drawn when it is asked for, and the recorder
/// is locked while one is drawn, but not between two of them.
#[derive(Debug)]
pub struct History {
    shared: Arc<Shared>,
    /// The beginning of the answer, and the numbers of series that were left out. They are final after the last series:
    /// the recorder may drop some before they are drawn.
    pub(crate) plan: Plan,
}

impl History {
    /// The bytes that the answer and one series in it use.
    pub fn bytes(&self) -> usize {
        const SERIES: usize = 256 << 10;
        SERIES + self.plan.left.capacity() * size_of::<Drawn>()
    }
}

impl Iterator for History {
    type Item = HistorySeries;

    fn next(&mut self) -> Option<HistorySeries> {
        loop {
            let next = self.plan.left.pop()?;
            let drawn = {
                let ledger = self.shared.ledger.lock();
                answers::draw(&ledger.histories, &self.plan, &next, ledger.now())
            };
            if drawn.is_some() {
                return drawn;
            }
            self.plan.more_series += 1;
            self.plan.more_workloads += usize::from(next.is_workload());
        }
    }
}
