//! Parts of the modules for the workspace's own tests, benchmarks and fuzz targets.
//!
//! Invariant: no module imports from here (`tests/it/architecture.rs`), and nothing here is guaranteed to stay stable.

pub use crate::app::settings::{lanes as lanes_settings, metrics as metrics_settings};
pub use crate::kubernetes::api::budget_index::{BudgetIndex, Problem};
pub use crate::kubernetes::api::container_index::{ContainerIndex, RETENTION};
pub use crate::kubernetes::api::list_watch::{List, WatchEvent};
pub use crate::kubernetes::api::pod::{ContainerName, Pod};
pub use crate::kubernetes::claims::heard::Heard;
