//! Locates the values in the text of a rule file or a scrape configuration in the style of this repository: one entry
//! per line, block scalars and plain scalars, no expression in quotes.

use std::ops::Range;

/// `key: value` on a line, possibly after a `- `.
pub(crate) struct Entry<'t> {
    pub(crate) key: &'t str,
    /// The column of the key.
    pub(crate) column: usize,
    /// Where the value is; empty if the line has none.
    pub(crate) value: Range<usize>,
}

impl<'t> Entry<'t> {
    /// `start`: where the line begins in the text.
    pub(crate) fn of(line: &'t str, start: usize) -> Option<Self> {
        let column = line.find(|c: char| !" -".contains(c))?;
        let (key, after) = line[column..].split_once(':')?;
        let is_key = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !is_key || !after.starts_with([' ', '\n']) {
            return None;
        }
        // A comment after a plain value is not part of it.
        let from = line.len() - after.trim_start().len();
        let value = line[from..].split(" #").next().unwrap_or("").trim_end();
        Some(Self { key, column, value: start + from..start + from + value.len() })
    }
}

/// Where the times are in a rule file.
#[derive(Default)]
pub(crate) struct Outline {
    pub(crate) durations: Vec<Range<usize>>,
    /// Expressions, each with the name of the series that it records, if any.
    pub(crate) expressions: Vec<(Option<String>, Range<usize>)>,
}

impl Outline {
    /// # Panics
    /// If an expression is in quotes.
    pub(crate) fn of(text: &str) -> Self {
        let mut outline = Self::default();
        let mut record = None;
        let mut lines = text.split_inclusive('\n').scan(0, |start, line| {
            *start += line.len();
            Some((*start - line.len(), line))
        });
        let mut next = lines.next();
        while let Some((start, line)) = next {
            next = lines.next();
            let Some(entry) = Entry::of(line, start) else { continue };
            let value = &text[entry.value.clone()];
            // A scalar continues as long as its lines are indented more deeply than its key.
            let mut end = entry.value.end;
            while let Some((start, line)) = next.filter(|(_, line)| {
                let goes_on = !value.is_empty() && line.find(|c| c != ' ').is_some_and(|deep| deep > entry.column);
                goes_on || line.trim().is_empty()
            }) {
                if !line.trim().is_empty() {
                    end = start + line.len();
                }
                next = lines.next();
            }
            match entry.key {
                "interval" | "for" | "keep_firing_for" => outline.durations.push(entry.value),
                "alert" => record = None,
                "record" => record = Some(value.to_owned()),
                "expr" => {
                    assert!(!value.starts_with(['"', '\'']), "an expression in quotes: {value}");
                    let first = if value.starts_with(['|', '>']) { entry.value.end } else { entry.value.start };
                    outline.expressions.push((record.take(), first..end));
                }
                _ => {}
            }
        }
        outline
    }
}
