//! Tables of text for a person at a terminal.
//!
//! Invariant: the cells can come from processes that may be hostile, so nothing is written that a terminal would interpret. No
//! line is wider than the limit, unless even its shortest form is wider.

use text_and_sizes::text::printable;

/// The space between two columns.
const GAP: &str = "  ";
/// No column is cut to fewer characters than this.
const NARROWEST: usize = 8;

/// Where the columns of a table are.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// The space before the first column.
    pub(crate) indent: &'static str,
    /// The columns that are aligned on the right, such as numbers.
    pub(crate) right: &'static [usize],
    /// The columns that may be cut, in the order in which they are cut.
    pub(crate) flexible: &'static [usize],
}

/// The lines of a table. Its columns are as wide as their widest cells, reduced so that each line has at most `limit`
/// characters if that is possible.
pub(crate) fn lines<const N: usize>(
    heading: [&str; N],
    rows: Vec<[String; N]>,
    layout: &Layout,
    limit: usize,
) -> Vec<String> {
    let rows = rows.into_iter().map(|row| row.map(|cell| printable(&cell)));
    let rows: Vec<_> = std::iter::once(heading.map(str::to_owned)).chain(rows).collect();
    let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut widths: [usize; N] = std::array::from_fn(widest);
    let total = layout.indent.len() + widths.iter().sum::<usize>() + GAP.len() * (N - 1);
    let mut excess = total.saturating_sub(limit);
    for &column in layout.flexible {
        let less = excess.min(widths[column].saturating_sub(NARROWEST));
        widths[column] -= less;
        excess -= less;
    }
    let line = |row: &[String; N]| {
        let cells: [String; N] = std::array::from_fn(|column| {
            let (cell, width) = (cut(&row[column], widths[column]), widths[column]);
            if layout.right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        format!("{}{}", layout.indent, cells.join(GAP)).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// The text, with an ellipsis in place of what exceeds the width.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { indent: "  ", right: &[0, 4, 5, 6], flexible: &[3, 2, 1] };

    fn table(name: &str, workload: &str, limit: usize) -> Vec<String> {
        let heading = ["PID", "USER", "PROCESS", "WORKLOAD", "USED", "PEAK", "IDLE"];
        let row = ["4100", "mira", name, workload, "12.52 GiB", "94.51 GiB", "0.124 s"];
        lines(heading, vec![row.map(str::to_owned)], &LAYOUT, limit)
    }

    #[test]
    fn the_longest_texts_are_cut_to_the_width_of_the_terminal() {
        let of = |limit| table("vllm.entrypoints.openai.api_server", "team-b/llama-13b-0/trainer", limit);
        assert!(of(usize::MAX).iter().all(|line| !line.contains('…')));
        for width in [64, 80, 100] {
            let lines = of(width);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}");
            assert!(lines[1].contains('…') && lines[1].ends_with("12.52 GiB  94.51 GiB  0.124 s"), "{}", lines[1]);
        }
    }

    #[test]
    fn columns_stay_aligned() {
        assert_eq!(
            table("é", "user:mira", usize::MAX),
            [
                "   PID  USER  PROCESS  WORKLOAD        USED       PEAK     IDLE",
                "  4100  mira  é        user:mira  12.52 GiB  94.51 GiB  0.124 s"
            ]
        );
    }
}
