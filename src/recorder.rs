//! The recorder: what happened in the last two hours, and a frozen copy of each moment that mattered.
//!
//! ```text
//!  memory lane ── each change ──┐                    ┌──> history, events ──> http
//!  process lane ── each list ───┼─> feed ──> ledger ─┤
//!  allocator ── failed requests ┘                    │
//!  snapshot (driver, states, Xids) ───────────^      ├──> incidents ──> http, log, store (a folder)
//!                                                    └──> reports about workloads ──> http, file (a folder)
//! ```
//!
//! Four rooms, each of which imports only those before it: `history` (the histories and the events), `jobs` (the
//! reports about workloads), `disk` (the files), `incidents`. Above them, `ledger` passes on to each the entries of the
//! feed, and `handle` has the thread and the lock.
//!
//! Invariants: a lane never waits for the recorder, because the [`feed`](crate::snapshot::Feed) has no lock; the memory
//! of the recorder stays within its limit; an incident reports only what was observed.

mod disk;
mod handle;
mod history;
mod incidents;
mod jobs;
mod ledger;

pub use disk::report_file::ReportFileSettings;
pub use disk::store::StoreSettings;
pub use handle::{History, PERIOD, Recorder, Settings};
pub use history::{
    Between, Chart, ChartPoint, Event, EventKind, Exit, Failure, FailureSites, Growth, HistoryHead, HistoryQuery,
    HistorySeries, Holder, Incident, IncidentGpu, IncidentMig, Kind, MigIdentity, ModuleUse, Peak, PeakHolder,
    ProcessRef, RecordedPeak, SeriesKind, SiteUse, SitesGrown, VERSION, Visit, Visits,
};
pub use incidents::text::text;
pub use incidents::trace::write_chrome_trace;
pub use jobs::{DeviceReport, ExitCount, JobReport, ReportSettings, State, text as report_text};
