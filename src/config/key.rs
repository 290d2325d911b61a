//! One key of the configuration, and how its value is read.

use ::config::ValueKind;

use super::model::Config;
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
    /// The kind of the value.
    pub kind: Kind,
    /// Sets the key's field in the configuration.
    pub(super) set: fn(&mut Config, &Setting),
    /// The help, with units.
    pub help: &'static str,
}

impl Key {
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
            Kind::Duration { .. } | Kind::Number { .. } | Kind::Count { .. } | Kind::Choice(_) => {
                format!("{} Value: {}.", self.help, self.kind.allowed())
            }
            _ => self.help.to_owned(),
        }
    }

    /// The default as a setting.
    pub(super) fn default_setting(&self) -> Setting {
        match self.default {
            None => Setting::Unset,
            Some(text) => self.kind.read_text(text).expect("every default is valid; a test checks this"),
        }
    }

    /// Reads the text of a flag or a variable. Empty text unsets a key that has no default.
    pub(super) fn read_text(&self, text: &str) -> Result<Setting, String> {
        if text.is_empty() && self.default.is_none() { Ok(Setting::Unset) } else { self.kind.read_text(text) }
    }

    /// Reads a value from a file. Empty text, or YAML's null, unsets a key that has no default.
    pub(super) fn read_value(&self, value: &ValueKind) -> Result<Setting, String> {
        match value {
            ValueKind::Nil if self.default.is_none() => Ok(Setting::Unset),
            ValueKind::String(text) if text.is_empty() => self.read_text(text),
            other => self.kind.read_value(other),
        }
    }
}
