//! The layer of the configuration file, TOML or YAML. The file is not trusted: its size is bounded, and its content can
//! cause an error but neither a panic nor a hang.

use std::collections::BTreeSet;
use std::path::Path;

use ::config::{FileFormat, Format, Map, Value, ValueKind};

use super::keys::{Key, SECTIONS};
use super::layers::Layer;
use super::problem::{MESSAGE, Problem, preview};
use super::setting::Kind;
use super::yaml;
use crate::regular_file;
use crate::text::{printable, untrusted};

/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 1024 * 1024;

/// Reads the settings from a file. An unreadable file results in an empty layer and a problem.
pub(super) fn read(path: &Path, problems: &mut Vec<Problem>) -> Layer {
    // A message must be one line, whatever characters the file name contains.
    let origin = printable(&path.to_string_lossy());
    match tables(path, &origin) {
        Ok(root) => Reading { origin, layer: Layer::default(), seen: BTreeSet::new(), problems }.root(root),
        Err(why) => {
            problems.push(Problem::Unreadable { origin, why });
            Layer::default()
        }
    }
}

fn tables(path: &Path, origin: &String) -> Result<Map<String, Value>, String> {
    let parse = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => toml,
        Some("yaml" | "yml") => |_: &String, text: &str| yaml::parse(text),
        _ => return Err("the name of a configuration file must end in .toml, .yaml or .yml".to_owned()),
    };
    let text = text(path)?;
    parse(origin, text.strip_prefix('\u{feff}').unwrap_or(&text)).map_err(|why| one_line(&why))
}

fn toml(origin: &String, text: &str) -> Result<Map<String, Value>, String> {
    FileFormat::Toml.parse(Some(origin), text).map_err(|error| format!("cannot be parsed: {error}"))
}

fn text(path: &Path) -> Result<String, String> {
    let bytes = regular_file::read(path, MAX_BYTES).map_err(|error| format!("cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|error| format!("is not UTF-8 text (byte {})", error.utf8_error().valid_up_to()))
}

/// A parser's message without the excerpt of the source line.
fn one_line(message: &str) -> String {
    let drawn = |line: &&str| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|');
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|l| !drawn(l) && !l.is_empty()).collect();
    untrusted(&lines.join(": "), MESSAGE)
}

struct Reading<'a> {
    origin: String,
    layer: Layer,
    seen: BTreeSet<&'static str>,
    problems: &'a mut Vec<Problem>,
}

impl Reading<'_> {
    fn root(mut self, root: Map<String, Value>) -> Layer {
        for (name, value) in sorted(root) {
            let is_section = SECTIONS.iter().any(|(section, _)| *section == name);
            match value.kind {
                ValueKind::Table(table) if !table.is_empty() || is_section => self.table(&name, table),
                // A YAML section in which every key is commented out.
                ValueKind::Nil if is_section => {}
                _ if is_section => self.problems.push(Problem::Unreadable {
                    origin: self.origin.clone(),
                    why: format!("\"{name}\" is a section; set its keys, as listed by --help"),
                }),
                kind => self.entry(&name, &kind),
            }
        }
        self.layer
    }

    fn table(&mut self, section: &str, table: Map<String, Value>) {
        for (leaf, value) in sorted(table) {
            self.entry(&format!("{section}.{leaf}"), &value.kind);
        }
    }

    fn entry(&mut self, name: &str, value: &ValueKind) {
        let Some(key) = Key::find(name) else {
            return self.problems.push(Problem::Unknown {
                origin: self.origin.clone(),
                what: "key",
                name: preview(name),
                nearest: Key::nearest(name).map(|key| key.name.to_owned()),
            });
        };
        // A nested table and a dotted name may set the same key; neither of them wins.
        let read = if self.seen.insert(key.name) { key.read_value(value) } else { Err("is given twice".to_owned()) };
        self.layer.take(key, read, &self.origin, shown(&key.kind, value), self.problems);
    }
}

fn sorted(table: Map<String, Value>) -> Vec<(String, Value)> {
    let mut entries: Vec<_> = table.into_iter().collect();
    entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    entries
}

/// A value as a message shows it.
fn shown(kind: &Kind, value: &ValueKind) -> String {
    match value {
        ValueKind::Nil => "nothing".to_owned(),
        ValueKind::String(text) => kind.shown(text),
        ValueKind::Table(_) => "a table".to_owned(),
        ValueKind::Array(list) => {
            let entry = |entry: &Value| match &entry.kind {
                ValueKind::Array(_) => "a list".to_owned(),
                value => shown(kind, value),
            };
            let some: Vec<String> = list.iter().take(4).map(entry).collect();
            format!("[{}{}]", some.join(", "), if list.len() > 4 { ", …" } else { "" })
        }
        scalar => scalar.to_string(),
    }
}
