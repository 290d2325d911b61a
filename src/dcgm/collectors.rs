//! The list of fields to serve: the one that dcgm-exporter serves by default, or one from a file in its CSV format.
//!
//! Invariant: every name in a list is that of a family or a label (`DCGM_` and capital letters, digits, underscores, or in
//! lower case as in dcgm-exporter 1.x), and no name is served twice.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::anyhow;

use super::fields::{self, Field, Read, Switch};
use crate::config::DcgmNames;
use crate::regular_file;
use crate::text::quoted;
use gpu_metrics::Kind;

/// The longest file that is read, in bytes.
pub const LONGEST_FILE: u64 = 1 << 20;
/// The longest name of a field, in bytes.
const LONGEST_NAME: usize = 128;
/// The longest part of a line that an error repeats, in characters.
const PREVIEW: usize = 40;
/// What the value of an entry may be.
const TYPES: [(&str, Option<Kind>); 3] =
    [("gauge", Some(Kind::Gauge)), ("counter", Some(Kind::Counter)), ("label", None)];

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Problem {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and what is expected.
    pub why: String,
}

/// One field of a list.
#[derive(Debug, Clone)]
pub(super) struct Column {
    /// The name of the family, or of the label.
    pub(super) name: String,
    /// The type of the family; `None` for a label.
    pub(super) kind: Option<Kind>,
    /// The help of the family.
    pub(super) help: String,
    /// How it is read.
    pub(super) field: &'static Field,
}

/// The fields to serve.
#[derive(Debug, Clone, Default)]
pub struct Collectors {
    pub(super) columns: Vec<Column>,
    /// The names in the file that are not served, with the reason.
    unserved: Vec<(String, &'static str)>,
    /// The lines of the file that repeat a name and are ignored.
    repeated: Vec<Repeated>,
}

/// A line that names a field which an earlier line names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated {
    /// The name.
    pub name: String,
    /// The line that counts, from 1.
    pub first: usize,
    /// The line that is ignored.
    pub line: usize,
}

impl Collectors {
    /// The fields that dcgm-exporter serves by default, with the names of a naming.
    pub fn by_default(naming: DcgmNames) -> Self {
        let numbers = fields::listed(naming).map(|(name, field, kind, help)| Column {
            name: name.to_owned(),
            kind: Some(kind),
            help: help.to_owned(),
            field,
        });
        let label = fields::listed_label(naming);
        let label = label.map(|(name, field)| Column { name: name.to_owned(), kind: None, help: String::new(), field });
        Self { columns: numbers.chain(label).collect(), ..Self::default() }
    }

    /// The fields in a file, under the names in the file.
    ///
    /// # Errors
    /// When the file cannot be read, is longer than [`LONGEST_FILE`], or has an invalid line.
    pub fn from_file(path: &Path) -> anyhow::Result<Self> {
        let (key, file) = ("dcgm.collectors-file", path.display());
        let text = regular_file::read(path, LONGEST_FILE).map_err(|cause| {
            let advice = "name a readable CSV file, or unset the key to serve the default fields";
            anyhow!("{key}: {file} cannot be read ({cause}); {advice}")
        })?;
        parse(&text).map_err(|problem| anyhow!("{key}: {file}, {problem}"))
    }

    /// The names that are not served, each with the reason, in the order of the file.
    pub fn unserved(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.unserved.iter().map(|(name, why)| (name.as_str(), *why))
    }

    /// The lines that repeat a name, in the order of the file.
    pub fn repeated(&self) -> &[Repeated] {
        &self.repeated
    }

    /// The names of the families that have no value without a key, each with the key.
    pub fn switched(&self) -> impl Iterator<Item = (&str, Switch)> {
        self.columns.iter().filter_map(|column| Some((column.name.as_str(), column.field.needs?)))
    }

    /// The names of the families that are served, in the order of the list.
    pub fn families(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().filter(|column| column.kind.is_some()).map(|column| column.name.as_str())
    }

    /// The number of families and labels.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether no family is served. A label is shown only on families.
    pub fn is_empty(&self) -> bool {
        self.columns.iter().all(|column| column.kind.is_none())
    }
}

/// Reads a list: one field a line with its name, its type and its help, separated by commas. A line that begins with `#`
/// is a comment. A text in double quotes may contain commas, and a quote in it is doubled. Of the lines with the same name,
/// the first one counts: two series with the same name and labels would make a scrape fail.
///
/// # Errors
/// The first invalid line.
pub fn parse(text: &[u8]) -> Result<Collectors, Problem> {
    let mut collectors = Collectors::default();
    let mut lines = BTreeMap::new();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let problem = |why| Problem { line: at + 1, why };
        let line = std::str::from_utf8(line).map_err(|_| problem("is not UTF-8 text".to_owned()))?.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, kind, help) = entry(line).map_err(problem)?;
        let line = at + 1;
        match lines.get(&name) {
            Some(&first) => collectors.repeated.push(Repeated { name, first, line }),
            None => {
                lines.insert(name.clone(), line);
                collectors.add(name, kind, help);
            }
        }
    }
    Ok(collectors)
}

impl Collectors {
    fn add(&mut self, name: String, kind: Option<Kind>, help: String) {
        match (fields::find(&name), kind) {
            (Some(field @ Field { read: Read::Number(_) | Read::Constant(_) | Read::XidTotals, .. }), Some(_))
            | (Some(field @ Field { read: Read::Text(_) | Read::Constant(_), .. }), None) => {
                self.columns.push(Column { name, kind, help, field });
            }
            (Some(_), Some(_)) => self.unserved.push((name, "it is text; its type must be label")),
            (Some(_), None) => {
                self.unserved.push((name, "it is a number that changes; its type must be gauge or counter"))
            }
            (None, _) => {
                let why = fields::why_missing(&name);
                self.unserved.push((name, why));
            }
        }
    }
}

/// Reads the three parts of a line.
fn entry(line: &str) -> Result<(String, Option<Kind>, String), String> {
    let parts = split(line)?;
    let [name, kind, help] = <[String; 3]>::try_from(parts).map_err(|parts| {
        let count = parts.len();
        format!("has {count} parts instead of 3 (FIELD, TYPE, HELP); put a help that contains commas in double quotes")
    })?;
    let is_plain = |prefix: &str, letter: fn(&char) -> bool| {
        name.starts_with(prefix) && name.chars().all(|c| letter(&c) || c.is_ascii_digit() || c == '_')
    };
    let is_name = is_plain("DCGM_", char::is_ascii_uppercase) || is_plain("dcgm_", char::is_ascii_lowercase);
    if !is_name || name.len() > LONGEST_NAME {
        return Err(format!(
            "{} is not the name of a DCGM field, such as DCGM_FI_DEV_GPU_TEMP",
            quoted(&name, PREVIEW)
        ));
    }
    let Some((_, kind)) = TYPES.iter().find(|(word, _)| *word == kind) else {
        return Err(format!("{} is not a type; write gauge, counter or label", quoted(&kind, PREVIEW)));
    };
    Ok((name, *kind, help))
}

/// Splits a line at its commas, except those in double quotes.
fn split(line: &str) -> Result<Vec<String>, String> {
    let mut parts = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start();
        let (part, after) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim_end().to_owned(), &rest[end..])
            }
        };
        parts.push(part);
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None => return Ok(parts),
        }
    }
}

/// The text up to the closing quote, and what follows it.
fn unquote(text: &str) -> Result<(String, &str), String> {
    let mut part = String::new();
    let mut rest = text;
    loop {
        let Some(end) = rest.find('"') else { return Err("has a quote that is not closed on this line".to_owned()) };
        part.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                part.push('"');
                rest = more;
            }
            None => break,
        }
    }
    let after = rest.trim_start();
    if after.is_empty() || after.starts_with(',') {
        return Ok((part.trim().to_owned(), after));
    }
    Err("has text after a closing quote; double a quote that belongs to the text".to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
