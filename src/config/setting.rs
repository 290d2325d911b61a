//! The kinds of values, and one checked value. Everything that concerns a single key is checked here; what concerns
//! several keys is checked in `check`.
//!
//! Invariant: each kind contains a field of the type that it reads, so a value cannot reach a field of another type.

use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ::config::ValueKind;

use super::address::ListenAddress;
use super::forms::{
    api_server, check_node_name, check_otlp_endpoint, check_url_path, is_glob, is_group, is_label_key, is_path,
    label_name, log_filter, octal,
};
use super::model::{ApiServer, Config};
use super::problem::preview;
use super::units::{format_duration, parse_duration, with_unit};
use crate::server_url::without_secrets;

/// The most labels of pods that are shown. A pod has one series, however many they are.
const MOST_POD_LABELS: usize = 10;

/// A field of the configuration.
pub type Field<T> = fn(&mut Config) -> &mut T;

/// A word of a choice, with the function that sets what the word stands for.
pub type Word = (&'static str, fn(&mut Config));

/// Words that were removed from a choice, each with the word to write instead.
const REMOVED: [(&str, &str); 2] = [("exporter-main", "exporter-4.8"), ("dcgm-4.6", "exporter-4.9")];

/// The kind of a key's value, with the field that the value is for.
#[derive(Debug)]
pub enum Kind {
    /// Addresses to listen on: a list in a file, repeated as a flag, separated by commas elsewhere.
    Addresses(Field<Vec<ListenAddress>>),
    /// Names with wildcards: a list in a file, repeated as a flag, separated by commas elsewhere.
    Globs(Field<Vec<String>>),
    /// Names of hosts and IP addresses, without ports: a list in a file, repeated as a flag, separated by commas
    /// elsewhere.
    Hosts(Field<Vec<String>>),
    /// Keys of Kubernetes labels that have different names in the metrics: a list in a file, repeated as a flag, separated
    /// by commas elsewhere.
    PodLabels(Field<Vec<String>>),
    /// A path on the web server.
    UrlPath(Field<String>),
    /// A path in the file system. The text is the placeholder that the help shows.
    Path(&'static str, Field<Option<PathBuf>>),
    /// The path of a folder that is always set.
    Folder(Field<PathBuf>),
    /// A time span with its unit, within these bounds.
    Duration(RangeInclusive<Duration>, Field<Duration>),
    /// A number with or without a fraction, in hertz, within these bounds.
    Hertz(RangeInclusive<f64>, Field<f64>),
    /// A whole number within these bounds.
    Count(RangeInclusive<usize>, Field<usize>),
    /// `true` or `false`.
    Switch(Field<bool>),
    /// One of a few words.
    Choice(&'static [Word]),
    /// A log level or levels by target.
    LogFilter(Field<String>),
    /// The name of a Kubernetes node.
    NodeName(Field<Option<String>>),
    /// `in-cluster`, or the URL of an API server.
    ApiServer(Field<Option<ApiServer>>),
    /// The URL of an OTLP/HTTP receiver.
    OtlpEndpoint(Field<Option<String>>),
    /// Permissions of a file, in octal.
    Mode(Field<u32>),
    /// A group, as a name or a number.
    Group(Field<Option<String>>),
}

/// One checked value.
pub(super) struct Setting {
    /// The value in TOML.
    pub(super) toml: String,
    /// Puts the value into its field of the configuration.
    pub(super) put: Box<dyn Fn(&mut Config)>,
}

impl Setting {
    fn new<T: Clone + 'static>(field: &Field<T>, value: T, toml: String) -> Self {
        let field = *field;
        Self { toml, put: Box::new(move |config: &mut Config| *field(config) = value.clone()) }
    }

    /// A value that TOML writes as this text.
    fn text<T: Clone + 'static>(field: &Field<T>, value: T, text: &str) -> Self {
        Self::new(field, value, toml_string(text))
    }

    /// A number within its bounds; `None` for any other, and for NaN, with which every comparison is false.
    fn within<T>(allowed: &RangeInclusive<T>, field: &Field<T>, number: Option<T>) -> Option<Self>
    where
        T: PartialOrd + Copy + ToString + 'static,
    {
        let number = number.filter(|number| allowed.contains(number))?;
        Some(Self::new(field, number, number.to_string()))
    }
}

impl Kind {
    /// The words from which the value is chosen; none if the value can be something else too.
    pub(super) fn words(&self) -> Vec<&'static str> {
        match self {
            Self::Choice(words) => words.iter().map(|(word, _)| *word).collect(),
            Self::Switch(_) => vec!["true", "false"],
            _ => Vec::new(),
        }
    }

    /// A refused value as a message shows it, without what could be secret.
    pub(super) fn shown(&self, text: &str) -> String {
        match self {
            Self::ApiServer(_) | Self::OtlpEndpoint(_) => preview(&without_secrets(text)),
            _ => preview(text),
        }
    }

    /// The name of the value in the help, and the allowed values, for use after "must be" and in the documentation.
    pub(super) fn described(&self) -> (&'static str, String) {
        match self {
            Self::Addresses(_) => ("ADDRESS", "one or more addresses".to_owned()),
            Self::Globs(_) => ("NAME", "one or more names, which may contain *, ? and [ab]".to_owned()),
            Self::Hosts(_) => ("HOST", "one or more names or IP addresses without ports".to_owned()),
            Self::PodLabels(_) => ("KEY", format!("one to {MOST_POD_LABELS} keys of labels")),
            Self::UrlPath(_) => ("PATH", "a path that begins with /".to_owned()),
            Self::Path(name, _) => (name, "a path".to_owned()),
            Self::Folder(_) => ("DIR", "a path".to_owned()),
            Self::Duration(allowed, _) => {
                let [least, most] = [allowed.start(), allowed.end()].map(|bound| format_duration(*bound));
                ("DURATION", format!("a duration from {least} to {most}"))
            }
            Self::Hertz(allowed, _) => ("HZ", format!("a number from {} to {}", allowed.start(), allowed.end())),
            Self::Count(allowed, _) => {
                ("COUNT", format!("a whole number from {} to {}", allowed.start(), allowed.end()))
            }
            Self::Switch(_) => ("BOOL", self.words().join(" or ")),
            Self::Choice(_) => ("FORMAT", self.words().join(" or ")),
            Self::LogFilter(_) => ("LEVEL", "a log level or levels by target".to_owned()),
            Self::NodeName(_) => ("NAME", "a node's name".to_owned()),
            Self::ApiServer(_) => ("URL", "\"in-cluster\" or a URL".to_owned()),
            Self::OtlpEndpoint(_) => ("URL", "a URL".to_owned()),
            Self::Mode(_) => ("MODE", "permissions in octal, \"0000\" to \"0777\"".to_owned()),
            Self::Group(_) => ("GROUP", "a group's name or number".to_owned()),
        }
    }

    fn refusal(&self) -> String {
        format!("must be {}", self.described().1)
    }

    /// Reads the text of a flag or an environment variable; the error names the allowed values.
    pub(super) fn read_text(&self, text: &str) -> Result<Setting, String> {
        let owned = || text.to_owned();
        let refused = || self.refusal();
        match self {
            Self::Addresses(_) | Self::Globs(_) | Self::Hosts(_) | Self::PodLabels(_) => {
                self.read_list(&entries(&[text]))
            }
            Self::UrlPath(field) => check_url_path(text).map(|()| Setting::text(field, owned(), text)),
            Self::LogFilter(field) => log_filter(text).map(|filter| Setting::text(field, filter.clone(), &filter)),
            Self::NodeName(field) => check_node_name(text).map(|()| Setting::text(field, Some(owned()), text)),
            Self::ApiServer(field) => api_server(text).map(|server| Setting::text(field, Some(server), text)),
            Self::OtlpEndpoint(field) => check_otlp_endpoint(text).map(|()| Setting::text(field, Some(owned()), text)),
            Self::Path(_, field) if is_path(text) => Ok(Setting::text(field, Some(PathBuf::from(text)), text)),
            Self::Folder(field) if is_path(text) => Ok(Setting::text(field, PathBuf::from(text), text)),
            Self::Group(field) if is_group(text) => Ok(Setting::text(field, Some(owned()), text)),
            Self::Path(..) | Self::Folder(_) | Self::Group(_) => Err(refused()),
            Self::Mode(field) => octal(text).map(|mode| Setting::text(field, mode, text)).ok_or_else(refused),
            Self::Choice(words) => {
                let named = |name: &str| words.iter().find(|(word, _)| *word == name);
                let word = named(text).ok_or_else(|| {
                    let instead = REMOVED.iter().find(|(word, instead)| *word == text && named(instead).is_some());
                    let instead = instead.map(|(_, instead)| format!("; write \"{instead}\" instead"));
                    format!("{}{}", refused(), instead.unwrap_or_default())
                });
                word.map(|(word, put)| Setting { toml: toml_string(word), put: Box::new(*put) })
            }
            Self::Duration(allowed, field) => {
                let meant = with_unit(text, allowed).map(|meant| format!("; did you mean \"{meant}\"?"));
                let read = parse_duration(text).filter(|value| allowed.contains(value));
                let read = read.map(|value| Setting::text(field, value, &format_duration(value)));
                read.ok_or_else(|| format!("{}{}", refused(), meant.unwrap_or_default()))
            }
            Self::Hertz(allowed, field) => Setting::within(allowed, field, text.parse().ok()).ok_or_else(refused),
            Self::Count(allowed, field) => Setting::within(allowed, field, text.parse().ok()).ok_or_else(refused),
            Self::Switch(field) => match text.parse::<bool>() {
                Ok(on) => Ok(Setting::new(field, on, on.to_string())),
                Err(_) => Err(refused()),
            },
        }
    }

    /// Reads a value from a file. Its type must match: a number is not read from a string, nor a duration from a
    /// number.
    pub(super) fn read_value(&self, value: &ValueKind) -> Result<Setting, String> {
        match (self, value) {
            (Self::Hertz(..) | Self::Count(..) | Self::Switch(_), ValueKind::String(_)) => {
                Err(format!("{}, written without quotes", self.refusal()))
            }
            (_, ValueKind::String(text)) => self.read_text(text),
            (_, ValueKind::Array(list)) => match (texts(list), self.example()) {
                (Some(texts), _) => self.read_list(&texts),
                (None, Some(example)) => Err(format!("must be a list of strings such as \"{example}\"")),
                (None, None) => Err(self.refusal()),
            },
            (Self::Hertz(..), ValueKind::Float(_) | ValueKind::I64(_))
            | (Self::Count(..), ValueKind::I64(_) | ValueKind::U64(_))
            | (Self::Switch(_), ValueKind::Boolean(_)) => self.read_text(&value.to_string()),
            (Self::Duration(allowed, _), ValueKind::I64(_) | ValueKind::Float(_)) => {
                let meant = with_unit(&value.to_string(), allowed).unwrap_or_else(|| "5s".to_owned());
                Err(format!("{}, written as text with its unit, such as \"{meant}\"", self.refusal()))
            }
            _ => Err(self.refusal()),
        }
    }

    /// Reads the texts of a flag that is given several times, which is allowed for a list only.
    pub(super) fn read_repeated(&self, texts: &[&str]) -> Result<Setting, String> {
        match self {
            Self::Addresses(_) | Self::Globs(_) | Self::Hosts(_) | Self::PodLabels(_) => {
                self.read_list(&entries(texts))
            }
            _ => Err("is given more than once; give it once".to_owned()),
        }
    }

    /// Reads the entries of a list. A kind that is not a list refuses them.
    fn read_list(&self, entries: &[&str]) -> Result<Setting, String> {
        match self {
            _ if entries.is_empty() => Err(self.refusal()),
            Self::Addresses(field) => addresses(entries, field),
            Self::Globs(field) => names(entries, glob, field),
            Self::Hosts(field) => names(entries, host, field),
            Self::PodLabels(_) if entries.len() > MOST_POD_LABELS => Err(self.refusal()),
            Self::PodLabels(field) => names(entries, label_key, field).and_then(|read| apart(entries).map(|()| read)),
            _ => Err(self.refusal()),
        }
    }

    /// An entry for a message about a list; `None` if the value is not a list.
    fn example(&self) -> Option<&'static str> {
        match self {
            Self::Addresses(_) => Some(":9836"),
            Self::Globs(_) => Some("gpu_memory_*"),
            Self::Hosts(_) => Some("gpu1.example.com"),
            Self::PodLabels(_) => Some("team"),
            _ => None,
        }
    }
}

/// The entries of texts in which commas separate them.
fn entries<'t>(texts: &[&'t str]) -> Vec<&'t str> {
    texts.iter().flat_map(|text| text.split(',')).map(str::trim).collect()
}

/// The strings of a list; `None` if an entry is not a string.
fn texts(list: &[::config::Value]) -> Option<Vec<&str>> {
    list.iter()
        .map(|entry| if let ValueKind::String(text) = &entry.kind { Some(text.as_str()) } else { None })
        .collect()
}

/// Addresses that are all different. TOML writes a single one as text.
fn addresses(entries: &[&str], field: &Field<Vec<ListenAddress>>) -> Result<Setting, String> {
    let mut list = Vec::new();
    for entry in entries {
        let address: ListenAddress = entry.parse()?;
        if list.contains(&address) {
            return Err(format!("{address} is given twice; give each address once"));
        }
        list.push(address);
    }
    let toml = list.iter().map(|address| toml_string(&address.to_string())).collect::<Vec<_>>().join(", ");
    let toml = if list.len() == 1 { toml } else { format!("[{toml}]") };
    Ok(Setting::new(field, list, toml))
}

/// Names, each read by `read`. TOML writes all of them as one text.
fn names(
    entries: &[&str],
    read: fn(&str) -> Result<String, String>,
    field: &Field<Vec<String>>,
) -> Result<Setting, String> {
    let names: Vec<String> = entries.iter().map(|entry| read(entry)).collect::<Result<_, _>>()?;
    let text = names.join(",");
    Ok(Setting::text(field, names, &text))
}

fn glob(text: &str) -> Result<String, String> {
    if is_glob(text) {
        return Ok(text.to_owned());
    }
    Err(format!("{} is not a name of letters, digits and _, which may contain *, ? and [ab]", preview(text)))
}

/// A host in the form in which requests address it: lower case, an IPv6 address in brackets.
fn host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<Ipv6Addr>().is_ok() {
        return Ok(format!("[{}]", bare.to_ascii_lowercase()));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let name = text.trim_end_matches('.');
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err(format!("{} is not a name or an IP address without a port", preview(text)));
    }
    Ok(name.to_ascii_lowercase())
}

/// The key of a label, as Kubernetes allows it.
fn label_key(text: &str) -> Result<String, String> {
    if is_label_key(text) {
        return Ok(text.to_owned());
    }
    Err(format!("{} is not the key of a Kubernetes label, such as \"team\" or \"example.com/team\"", preview(text)))
}

/// Refuses keys that would have the same name in the metrics.
fn apart(keys: &[&str]) -> Result<(), String> {
    for (at, key) in keys.iter().enumerate() {
        if let Some(other) = keys[..at].iter().find(|other| label_name(other) == label_name(key)) {
            let name = label_name(key);
            let same = format!("{} and {} are the same label in the metrics, {name}", preview(other), preview(key));
            return Err(if other == key { format!("{key} is given twice; give each key once") } else { same });
        }
    }
    Ok(())
}

/// A TOML basic string. No setting contains a control character, so only quotes and backslashes are escaped.
fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
