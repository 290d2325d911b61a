//! Renders the snapshot in Prometheus' text format and in OpenMetrics, with one table of families and one pass over the latest parts.
//!
//! Invariant: a scrape never calls the driver, never waits for a lane and never changes a value; a value that is
//! unknown or too old has no series; no two series have the same name and labels.
//!
//! The readings of the machine go from the snapshot straight into the text. The exporter's version and its count of
//! scrapes are kept in a [`prometheus::Registry`], whose text follows.

mod allocators;
mod budgets;
mod build_metrics;
mod calls;
mod data_quality;
mod driver;
mod exporter;
mod exposition;
mod family;
mod gpu_memory;
mod health;
mod incidents;
mod joined;
mod kubernetes;
mod label;
mod label_cache;
mod links;
mod mig;
mod openmetrics;
mod own_process;
mod points;
mod processes;
mod profiling;
mod pushes;
mod reference;
mod scrape;
mod scraped;
mod section;
mod selection;
mod settings;
mod table;
mod telemetry;
mod view;
mod workloads;

pub use exposition::Exposition;
pub use family::{Cadence, Family, Kind, Unit};
pub use label::{LONGEST as LONGEST_LABEL, LabelText, Labels};
pub use openmetrics::Format;
pub use points::{PointSink, pairs};
pub use reference::reference;
pub use scrape::{Error, Metrics};
pub use scraped::{Scrape, Scraped};
pub use selection::Selection;
pub use settings::Settings;
pub use table::families;
pub use view::{GpuView, Parts, Reporting, list_stale_after};
