//! Layers of settings, each with its origin: defaults, file, environment, flags. Later layers win.
//!
//! Invariant: only checked settings get into a layer, so a merged configuration contains no invalid value.

use std::collections::BTreeMap;

use super::keys::{KEYS, Key};
use super::model::Config;
use super::problem::Problem;
use super::setting::Setting;

/// The settings of one source by the names of their keys, each with its origin.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    settings: BTreeMap<&'static str, (Setting, String)>,
}

impl Layer {
    /// Takes a setting that was read, or adds the reason why it could not be. `shown` is the value for a message.
    pub(super) fn take(
        &mut self,
        key: &'static Key,
        read: Result<Setting, String>,
        origin: &str,
        shown: String,
        problems: &mut Vec<Problem>,
    ) {
        match read {
            Ok(setting) => drop(self.settings.insert(key.name, (setting, origin.to_owned()))),
            Err(why) => problems.push(Problem::Value { origin: origin.to_owned(), key: key.name, value: shown, why }),
        }
    }

    /// The number of keys that it sets.
    pub(super) fn len(&self) -> usize {
        self.settings.len()
    }
}

/// Every key's effective setting and its origin.
#[derive(Debug, Clone)]
pub(super) struct Effective(Layer);

impl Effective {
    /// The defaults of the table.
    pub(super) fn defaults() -> Self {
        let entry = |key: &Key| (key.name, (key.default_setting(), "default".to_owned()));
        Self(Layer { settings: KEYS.iter().map(entry).collect() })
    }

    /// The same with the settings of a layer in place of its own.
    pub(super) fn overridden_by(mut self, layer: Layer) -> Self {
        self.0.settings.extend(layer.settings);
        self
    }

    /// The setting of a key of the table.
    pub(super) fn get(&self, name: &str) -> &Setting {
        &self.entry(name).0
    }

    /// The origin of that setting.
    pub(super) fn origin(&self, name: &str) -> &str {
        &self.entry(name).1
    }

    fn entry(&self, name: &str) -> &(Setting, String) {
        self.0.settings.get(name).expect("the name is in the table of keys, and every key has a setting")
    }

    /// The configuration with these settings.
    pub(super) fn config(&self) -> Config {
        let mut config = Config::unset();
        for key in KEYS {
            (key.set)(&mut config, self.get(key.name));
        }
        config
    }
}

/// The defaults of the table of keys.
impl Default for Config {
    fn default() -> Self {
        Effective::defaults().config()
    }
}
