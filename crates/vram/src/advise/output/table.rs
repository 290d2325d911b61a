//! The advice as tables of text.
//!
//! Invariant: no name contains anything that a terminal would interpret.

use std::cmp::Reverse;

use text_and_sizes::text::printable;

use super::super::record::{Advice, Workload};
use super::words;
use crate::table::{Layout, lines};

/// The tables: those that free most first.
pub(super) fn text(advice: &Advice) -> String {
    let mut workloads: Vec<&Workload> = advice.workloads.iter().collect();
    // Stable: of equal ones, in the order of the JSON form.
    workloads.sort_by_key(|workload| Reverse(workload.freed_bytes));
    let cells: Vec<_> = workloads.iter().map(|workload| words::cells(workload)).collect();
    let units: Vec<_> = workloads.iter().filter_map(|workload| words::unit_cells(workload)).collect();

    let mut text = vec![printable(&words::title(advice))];
    text.extend(words::notes(advice).iter().map(|note| format!("  {}", printable(note))));
    text.push(String::new());
    text.extend(lines(words::HEADINGS, cells, &Layout::default(), usize::MAX));
    if !units.is_empty() {
        text.push(String::new());
        text.extend(lines(words::UNIT_HEADINGS, units, &Layout::default(), usize::MAX));
    }
    text.push(String::new());
    text.extend(words::packing(advice));
    text.extend(words::CAVEATS.map(str::to_owned));
    text.join("\n") + "\n"
}
