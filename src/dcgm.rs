//! The metric families of dcgm-exporter, written from the same snapshot as the exporter's own, so that users of
//! dcgm-exporter keep their dashboards, autoscalers and cost tools (docs/from-dcgm.md).
//!
//! Invariants: a scrape never calls the driver and never waits for a lane; a value that is unknown or too old has no
//! series; no two series have the same name and labels.
//!
//! [`Collectors`] is the list of fields to serve, [`fields`] the table of the fields that can be served, `devices` finds
//! the GPUs and MIG instances with their values, `holders` the containers to which they are allocated, and [`Families`]
//! writes the text.

mod collectors;
mod devices;
mod families;
mod fields;
mod holders;

pub use collectors::{Collectors, LONGEST_FILE, Problem, Repeated, parse};
pub use families::{Families, Settings};
pub use fields::{MISSING, Missing, Switch, on_request, served};
