//! Layers of settings, each with its origin: defaults, file, environment, flags. Later layers win.
//!
//! Invariant: only checked settings get into a layer, so a merged configuration contains no invalid value.

use std::collections::BTreeMap;

use super::keys::{Key, keys};
use super::model::Config;
use super::problem::Problem;
use super::setting::Setting;

/// The origin of a setting that no source gives.
pub(super) const DEFAULT: &str = "default";

/// Settings by the names of their keys, each with its origin: those of one source, or all effective ones. `None` is the
/// setting of a key that is deliberately without a value.
#[derive(Default)]
pub(super) struct Layer {
    settings: BTreeMap<&'static str, (Option<Setting>, String)>,
}

impl Layer {
    /// The defaults of the table: a setting for every key.
    pub(super) fn defaults() -> Self {
        let entry = |key: &Key| (key.name, (key.default_setting(), DEFAULT.to_owned()));
        Self { settings: keys().map(entry).collect() }
    }

    /// Stores a setting that was read, or adds a problem that states why it could not be read. `shown` is the
    /// value to show in a message.
    pub(super) fn take(
        &mut self,
        key: &'static Key,
        read: Result<Option<Setting>, String>,
        origin: &str,
        shown: String,
        problems: &mut Vec<Problem>,
    ) {
        match read {
            Ok(setting) => {
                self.settings.insert(key.name, (setting, origin.to_owned()));
            }
            Err(why) => problems.push(Problem::Value { origin: origin.to_owned(), key: key.name, value: shown, why }),
        }
    }

    /// The number of keys that it sets.
    pub(super) fn len(&self) -> usize {
        self.settings.len()
    }

    /// This layer with its settings overridden by those of a later layer.
    pub(super) fn overridden_by(mut self, later: Self) -> Self {
        self.settings.extend(later.settings);
        self
    }

    /// The value of a key of the table in TOML, if it has one, and its origin. Only for layers that begin with the
    /// defaults.
    pub(super) fn get(&self, name: &str) -> (Option<&str>, &str) {
        let (setting, origin) =
            self.settings.get(name).expect("the defaults have a setting for every key of the table");
        (setting.as_ref().map(|setting| setting.toml.as_str()), origin)
    }

    /// The configuration with these settings. Only for layers that begin with the defaults.
    pub(super) fn config(&self) -> Config {
        let mut config = Config::unset();
        for setting in self.settings.values().filter_map(|(setting, _)| setting.as_ref()) {
            (setting.put)(&mut config);
        }
        config
    }
}

/// The defaults of the table of keys.
impl Default for Config {
    fn default() -> Self {
        Layer::defaults().config()
    }
}
