//! The advice as one HTML page without scripts.
//!
//! Invariant: every text is escaped.

use text_and_sizes::text::Escaped;

use super::super::record::{Advice, Workload};
use super::words;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2em;color:#222;background:#fff}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:left}\
td{font-variant-numeric:tabular-nums}.raise{background:#fde8e8}.lower{background:#e8f4e8}\
@media (prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td{border-color:#444}.raise{background:#4a2020}.lower{background:#1f3a24}}";

/// The page.
pub(super) fn text(advice: &Advice) -> String {
    let title = words::title(advice);
    let title = Escaped(&title);
    let notes: String = words::notes(advice).iter().map(|note| format!("<p>{}</p>\n", Escaped(note))).collect();
    let mut workloads: Vec<&Workload> = advice.workloads.iter().collect();
    workloads.sort_by_key(|workload| std::cmp::Reverse(workload.freed_bytes));
    let rows: String = workloads
        .iter()
        .map(|workload| {
            let class = <&str>::from(workload.action);
            row(class, std::iter::once(words::name(workload)).chain(words::cells(workload)))
        })
        .collect();
    let units: String = workloads
        .iter()
        .filter_map(|workload| {
            let cells = words::unit_cells(workload.advice_bytes?, workload.units.as_ref()?);
            Some(row("", std::iter::once(words::name(workload)).chain(cells)))
        })
        .collect();
    let lines = words::packing(advice).into_iter().chain(words::CAVEATS.map(str::to_owned));
    let lines: String = lines.map(|line| format!("<p>{}</p>\n", Escaped(&line))).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <h1>{title}</h1>\n{notes}{}{}{lines}</html>\n",
        table(&words::HEADINGS, &rows),
        table(&words::UNIT_HEADINGS, &units)
    )
}

fn table(headings: &[&str], rows: &str) -> String {
    let headings: String = headings.iter().map(|heading| format!("<th>{}</th>", Escaped(heading))).collect();
    format!("<table>\n<thead><tr>{headings}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n")
}

fn row(class: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!("<td>{}</td>", Escaped(&cell))).collect();
    format!("<tr class=\"{class}\">{cells}</tr>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_markup() {
        let row = row("lower", ["<script>alert('\"&\u{202e}\u{0}')</script>".to_owned()].into_iter());
        assert_eq!(
            row,
            "<tr class=\"lower\"><td>&lt;script&gt;alert(&#39;&quot;&amp;\u{fffd}\u{fffd}&#39;)&lt;/script&gt;</td></tr>\n"
        );
    }
}
