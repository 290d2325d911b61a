//! Layers of settings, each with its origin, laid over one another: defaults, file, environment, flags.
//! Only checked settings get into a layer, so a merged configuration holds no bad value.

use std::collections::BTreeMap;

use ::config::{Map, Source, Value, ValueKind};

use super::keys::{KEYS, Key};
use super::problem::Problem;
use super::setting::Setting;

/// What one place sets.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    entries: Vec<(&'static Key, Setting, String)>,
}

/// Every key's effective setting, and where it came from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Effective {
    settings: BTreeMap<&'static str, (Setting, String)>,
}

impl Layer {
    /// The defaults of the table.
    pub(super) fn defaults() -> Self {
        let entry = |key: &'static Key| (key, key.default_setting(), "default".to_owned());
        Self { entries: KEYS.iter().map(entry).collect() }
    }

    /// Takes a setting that was read, or notes why it could not be. `shown` is the value as a message shows it.
    pub(super) fn take(
        &mut self,
        key: &'static Key,
        read: Result<Setting, String>,
        origin: &str,
        shown: String,
        problems: &mut Vec<Problem>,
    ) {
        match read {
            Ok(setting) => self.entries.push((key, setting, origin.to_owned())),
            Err(why) => problems.push(Problem::Value { origin: origin.to_owned(), key: key.name, value: shown, why }),
        }
    }

    /// How many keys it sets.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ::config::ConfigError> {
        let entry = |(key, setting, origin): &(&'static Key, Setting, String)| {
            (key.name.to_owned(), Value::new(Some(origin), setting.to_value()))
        };
        Ok(self.entries.iter().map(entry).collect())
    }
}

impl Effective {
    /// What holds where nothing is said.
    pub(super) fn defaults() -> Self {
        Self::merge(vec![Layer::defaults()])
    }

    /// Lays later layers over earlier ones; the first is the defaults, so that every key is set.
    pub(super) fn merge(layers: Vec<Layer>) -> Self {
        let builder = layers.into_iter().fold(::config::Config::builder(), |builder, layer| builder.add_source(layer));
        let merged = builder.build().expect("the layers are in memory and each collects without error");
        let sections = merged.collect().expect("a merged configuration is a table");
        let settings = KEYS.iter().map(|key| (key.name, Self::pick(&sections, key))).collect();
        Self { settings }
    }

    fn pick(sections: &Map<String, Value>, key: &'static Key) -> (Setting, String) {
        let (section, leaf) = key.parts();
        let value = match sections.get(section).map(|value| &value.kind) {
            Some(ValueKind::Table(table)) => table.get(leaf),
            _ => None,
        };
        let value = value.expect("the defaults set every key");
        let setting = key.read_value(&value.kind).expect("a layer holds checked settings, which read back the same");
        (setting, value.origin().unwrap_or("default").to_owned())
    }

    /// The setting of a key of the table.
    pub(super) fn get(&self, name: &str) -> &Setting {
        &self.entry(name).0
    }

    /// Where that setting came from.
    pub(super) fn origin(&self, name: &str) -> &str {
        &self.entry(name).1
    }

    fn entry(&self, name: &str) -> &(Setting, String) {
        self.settings.get(name).expect("the name is in the table of keys, and every key has a setting")
    }
}
