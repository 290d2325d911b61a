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
//! Invariants: a lane never waits for the recorder, because the [`feed`](crate::snapshot::Feed) has no lock; the memory
//! of the recorder stays within its limit; an incident reports only what was observed.

mod answers;
mod blocks;
mod clock;
mod device_history;
mod device_list;
mod disk;
mod ended_log;
mod ending;
mod event;
mod exit_status;
mod failures;
mod freeze;
mod handle;
mod heap_use;
mod incident;
mod incidents;
mod ledger;
mod list_times;
mod names;
mod peak;
mod peak_log;
mod process_history;
mod report_file;
mod reports;
mod retention;
mod series;
mod store;
mod subject;
mod text;
mod trace;
mod visits;
mod words;

pub use answers::{HistoryHead, HistoryQuery, HistorySeries, MigIdentity, SeriesKind};
pub use event::{Event, EventKind, Failure, ProcessRef};
pub use exit_status::Exit;
pub use handle::{History, PERIOD, Recorder, Settings};
pub use incident::{
    Between, Chart, ChartPoint, Growth, Holder, Incident, IncidentGpu, IncidentMig, Kind, Peak, VERSION,
};
pub use peak::{PeakHolder, RecordedPeak};
pub use report_file::ReportFileSettings;
pub use reports::{DeviceReport, ExitCount, JobReport, ReportSettings, State, text as report_text};
pub use store::StoreSettings;
pub use text::text;
pub use trace::write_chrome_trace;
pub use visits::{Visit, Visits};
