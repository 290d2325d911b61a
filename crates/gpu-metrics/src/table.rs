//! The one table of all metric families.
//!
//! Invariant: every exported family is in [`SECTIONS`]. HELP, TYPE, the reference document and the families of a scrape
//! come only from here.

use super::family::Family;
use super::section::Section;
use super::{
    allocators, budgets, build_metrics, calls, data_quality, driver, exporter, gpu_memory, health, incidents,
    kubernetes, links, mig, own_process, processes, profiling, pushes, telemetry, workloads,
};

/// The table, in the order of the reference and of a scrape.
pub(super) static SECTIONS: [&Section; 19] = [
    &gpu_memory::SECTION,
    &mig::SECTION,
    &processes::SECTION,
    &workloads::SECTION,
    &budgets::SECTION,
    &allocators::SECTION,
    &calls::SECTION,
    &kubernetes::SECTION,
    &incidents::SECTION,
    &telemetry::SECTION,
    &health::SECTION,
    &links::SECTION,
    &profiling::SECTION,
    &driver::SECTION,
    &data_quality::SECTION,
    &exporter::SECTION,
    &pushes::SECTION,
    &own_process::SECTION,
    &build_metrics::SECTION,
];

/// Every family in the table.
pub fn families() -> impl Iterator<Item = &'static Family> {
    SECTIONS.iter().flat_map(|section| section.families())
}
