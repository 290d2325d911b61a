//! One key of the configuration, and how its value is read.

use ::config::ValueKind;

use super::setting::{Kind, Setting};

/// The sections in order: the first part of a key's name, and a heading.
pub const SECTIONS: &[(&str, &str)] = &[
    ("web", "Web server"),
    ("metrics", "Choice of families"),
    ("nvml", "NVIDIA driver library"),
    ("path", "Host files"),
    ("memory", "GPU memory"),
    ("process", "GPU processes"),
    ("telemetry", "GPU telemetry"),
    ("profiling", "GPU profiling counters"),
    ("kubernetes", "Kubernetes"),
    ("slurm", "Slurm"),
    ("dcgm", "Families of dcgm-exporter"),
    ("allocator", "Reports of memory allocators"),
    ("recorder", "Recorder of the recent past"),
    ("otlp", "Push to an OTLP receiver"),
    ("log", "Log"),
];

/// The beginning of the name of every environment variable.
pub(super) const PREFIX: &str = "VRAM_EXPORTER_";

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// The path in a file and, after `--`, the flag: `memory.rate`.
    pub name: &'static str,
    /// The default as text, absent if the key is not set by default.
    pub default: Option<&'static str>,
    /// The kind of the value, with the field of the configuration that it is for.
    pub kind: Kind,
    /// The help, with units.
    pub help: &'static str,
}

impl Key {
    /// A key without a help.
    pub(super) const fn new(name: &'static str, default: Option<&'static str>, kind: Kind) -> Self {
        Self { name, default, kind, help: "" }
    }

    /// Adds the help, without which no key may be in the table.
    pub(super) const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    /// The section, and the name within it.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.name.split_once('.').expect("every key in the table has a section; a test checks this")
    }

    /// The environment variable: `VRAM_EXPORTER_MEMORY_RATE`.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.replace(['.', '-'], "_").to_uppercase())
    }

    /// The help, with the allowed values if the help does not name them.
    pub(super) fn full_help(&self) -> String {
        match self.kind {
            Kind::Duration(..) | Kind::Hertz(..) | Kind::Count(..) | Kind::Choice(_) => {
                format!("{} Value: {}.", self.help, self.kind.described().1)
            }
            _ => self.help.to_owned(),
        }
    }

    /// The default as a setting; `None` if the key is not set by default.
    pub(super) fn default_setting(&self) -> Option<Setting> {
        self.default.map(|text| self.kind.read_text(text).expect("every default is valid; a test checks this"))
    }

    /// Reads the text of a flag or a variable. Empty text unsets a key that has no default: the result is `None`.
    pub(super) fn read_text(&self, text: &str) -> Result<Option<Setting>, String> {
        if text.is_empty() && self.default.is_none() { Ok(None) } else { self.kind.read_text(text).map(Some) }
    }

    /// Reads a value from a file. Empty text, or YAML's null, unsets a key that has no default: the result is `None`.
    pub(super) fn read_value(&self, value: &ValueKind) -> Result<Option<Setting>, String> {
        match value {
            ValueKind::Nil if self.default.is_none() => Ok(None),
            ValueKind::String(text) if text.is_empty() => self.read_text(text),
            other => self.kind.read_value(other).map(Some),
        }
    }
}
