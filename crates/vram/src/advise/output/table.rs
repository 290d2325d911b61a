//! The advice as tables of text.
//!
//! Invariant: no name contains anything that a terminal would interpret.

use text_and_sizes::text::printable;

use super::super::record::{Advice, Workload};
use super::words;

/// The space between two columns.
const GAP: &str = "  ";

/// The tables: those that free most first.
pub(super) fn text(advice: &Advice) -> String {
    let mut lines = vec![printable(&words::title(advice))];
    lines.extend(words::notes(advice).iter().map(|note| format!("  {}", printable(note))));
    let mut workloads: Vec<&Workload> = advice.workloads.iter().collect();
    // Stable: of equal ones, in the order of the JSON form.
    workloads.sort_by_key(|workload| std::cmp::Reverse(workload.freed_bytes));
    let rows = workloads.iter().map(|workload| {
        let name = printable(&words::name(workload));
        [name].into_iter().chain(words::cells(workload).map(|cell| printable(&cell))).collect()
    });
    lines.push(String::new());
    lines.extend(aligned(&words::HEADINGS, rows.collect()));
    let units = workloads.iter().filter_map(|workload| {
        let cells = words::unit_cells(workload.advice_bytes?, workload.units.as_ref()?);
        let name = printable(&words::name(workload));
        Some([name].into_iter().chain(cells.map(|cell| printable(&cell))).collect())
    });
    let units: Vec<Vec<String>> = units.collect();
    if !units.is_empty() {
        lines.push(String::new());
        lines.extend(aligned(&words::UNIT_HEADINGS, units));
    }
    lines.push(String::new());
    lines.extend(words::packing(advice));
    lines.extend(words::CAVEATS.map(str::to_owned));
    lines.join("\n") + "\n"
}

/// Lines in which the columns are as wide as their widest cell.
fn aligned(headings: &[&str], rows: Vec<Vec<String>>) -> Vec<String> {
    let headings: Vec<String> = headings.iter().map(|heading| (*heading).to_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(headings).chain(rows).collect();
    let columns = all.first().map_or(0, Vec::len);
    let width = |column: usize| all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    };
    all.iter().map(line).collect()
}
