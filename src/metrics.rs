//! From the snapshot to Prometheus' text format: one table of families, one pass over the latest parts.
//!
//! Invariant: a scrape calls no driver, waits for no lane and changes no value; what is unknown or too old has no
//! series; no two series have the same name and labels.
//!
//! The readings of the machine go from the snapshot straight into the text. What the exporter counts about itself as a
//! program is held by a [`prometheus::Registry`], whose text follows.

mod build_metrics;
mod data_quality;
mod driver;
mod exporter;
mod exposition;
mod family;
mod gpu_memory;
mod kubernetes;
pub(crate) mod label;
mod label_cache;
mod mig;
mod own_process;
mod processes;
mod reference;
mod scrape;
mod settings;
mod table;
mod telemetry;
mod view;
mod workloads;

pub use family::{Family, Kind, Section, Unit, When};
pub use reference::reference;
pub use scrape::{CONTENT_TYPE, Error, Metrics, Scrape};
pub use settings::Settings;
pub use table::{SECTIONS, families};
pub use view::{GpuView, Parts};
