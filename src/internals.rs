//! Parts of the modules for the workspace's own tests, benchmarks and fuzz targets.
//!
//! Invariant: no module imports from here (`tests/it/architecture.rs`), and nothing here is guaranteed to stay stable.

pub use crate::allocator::message::{
    Change, Invalid, Measurement, Message, OutOfMemory, Report, parse as parse_allocator_message,
};
pub use crate::app::settings::{lanes as lanes_settings, metrics as metrics_settings};
pub use crate::attribution::record::{Stat, boot_seconds, effective_uid};
pub use crate::attribution::users::passwd::parse as parse_passwd;
pub use crate::kubernetes::api::budget_index::{BudgetIndex, Problem};
pub use crate::kubernetes::api::container_index::{ContainerIndex, RETENTION};
pub use crate::kubernetes::api::list_watch::{PodList, WatchEvent};
pub use crate::kubernetes::api::pod::{ContainerName, Pod};
pub use crate::lanes::manual::ManualLanes;
pub use crate::lanes::telemetry::reading::numbers as telemetry_numbers;
pub use crate::metrics::label::LONGEST as LONGEST_LABEL;
