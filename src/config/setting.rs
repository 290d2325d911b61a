//! The kinds of values, and one checked value. Everything that concerns a single key is checked here; what concerns
//! several keys is checked in `check`.

use std::path::PathBuf;
use std::time::Duration;

use ::config::ValueKind;

use super::address::ListenAddress;
use super::forms::{
    check_api_server, check_node_name, check_otlp_endpoint, check_url_path, is_glob, is_group, log_filter, octal,
};
use super::problem::preview;
use super::units::{format_duration, parse_duration, with_unit};
use crate::server_url::without_secrets;

/// The kind of a key's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Addresses to listen on: a list in a file, repeated as a flag, separated by commas elsewhere.
    Addresses,
    /// Names with wildcards: a list in a file, repeated as a flag, separated by commas elsewhere.
    Globs,
    /// Names of hosts and IP addresses, without ports: a list in a file, repeated as a flag, separated by commas elsewhere.
    Hosts,
    /// A path on the web server.
    UrlPath,
    /// A path in the file system. The text is the placeholder that the help shows.
    Path(&'static str),
    /// A time span with its unit; both bounds are inclusive.
    Duration {
        /// The shortest.
        min: Duration,
        /// The longest.
        max: Duration,
    },
    /// A number with or without a fraction, in hertz; both bounds are inclusive.
    Number {
        /// The least.
        min: f64,
        /// The greatest.
        max: f64,
    },
    /// A whole number; both bounds are inclusive.
    Count {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// `true` or `false`.
    Switch,
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// A log level or levels by target.
    LogFilter,
    /// The name of a Kubernetes node.
    NodeName,
    /// `in-cluster`, or the URL of an API server.
    ApiServer,
    /// The URL of an OTLP/HTTP receiver.
    OtlpEndpoint,
    /// Permissions of a file, in octal.
    Mode,
    /// A group, as a name or a number.
    Group,
}

/// One value, checked against its key's [`Kind`].
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// Deliberately without a value; only for keys without a default.
    Unset,
    /// A path, a word or a filter.
    Text(String),
    /// At least one, all different.
    Addresses(Vec<ListenAddress>),
    /// A time span.
    Duration(Duration),
    /// A finite number.
    Number(f64),
    /// A whole number.
    Count(u64),
    /// On or off.
    Switch(bool),
}

impl Kind {
    /// The name of the value in the help.
    pub(super) fn value_name(&self) -> &'static str {
        match self {
            Self::Addresses => "ADDRESS",
            Self::Globs => "NAME",
            Self::Hosts => "HOST",
            Self::UrlPath => "PATH",
            Self::Path(name) => name,
            Self::Duration { .. } => "DURATION",
            Self::Number { .. } => "HZ",
            Self::Count { .. } => "COUNT",
            Self::Switch => "BOOL",
            Self::Choice(_) => "FORMAT",
            Self::LogFilter => "LEVEL",
            Self::NodeName => "NAME",
            Self::ApiServer | Self::OtlpEndpoint => "URL",
            Self::Mode => "MODE",
            Self::Group => "GROUP",
        }
    }

    /// A refused value as a message shows it, without what could be secret.
    pub(super) fn shown(&self, text: &str) -> String {
        match self {
            Self::ApiServer | Self::OtlpEndpoint => preview(&without_secrets(text)),
            _ => preview(text),
        }
    }

    /// The allowed values, for use after "must be" and in the documentation.
    pub(super) fn allowed(&self) -> String {
        match self {
            Self::Addresses => "one or more addresses".to_owned(),
            Self::Globs => "one or more names, which may contain *, ? and [ab]".to_owned(),
            Self::Hosts => "one or more names or IP addresses without ports".to_owned(),
            Self::UrlPath => "a path that begins with /".to_owned(),
            Self::Path(_) => "a path".to_owned(),
            Self::Duration { min, max } => {
                format!("a duration from {} to {}", format_duration(*min), format_duration(*max))
            }
            Self::Number { min, max } => format!("a number from {min} to {max}"),
            Self::Count { min, max } => format!("a whole number from {min} to {max}"),
            Self::Switch => "true or false".to_owned(),
            Self::Choice(words) => words.join(" or "),
            Self::LogFilter => "a log level or levels by target".to_owned(),
            Self::NodeName => "a node's name".to_owned(),
            Self::ApiServer => "\"in-cluster\" or a URL".to_owned(),
            Self::OtlpEndpoint => "a URL".to_owned(),
            Self::Mode => "permissions in octal, \"0000\" to \"0777\"".to_owned(),
            Self::Group => "a group's name or number".to_owned(),
        }
    }

    /// Reads the text of a flag or an environment variable; the error names the allowed values.
    pub(super) fn read_text(&self, text: &str) -> Result<Setting, String> {
        let read = match self {
            Self::Addresses => return addresses(text.split(',').map(str::trim)),
            Self::Globs => return globs(text.split(',').map(str::trim)),
            Self::Hosts => return hosts(text.split(',').map(str::trim)),
            Self::UrlPath => return check_url_path(text).map(|()| Setting::Text(text.to_owned())),
            Self::LogFilter => return log_filter(text).map(Setting::Text),
            Self::NodeName => return check_node_name(text).map(|()| Setting::Text(text.to_owned())),
            Self::ApiServer => return check_api_server(text).map(|()| Setting::Text(text.to_owned())),
            Self::OtlpEndpoint => return check_otlp_endpoint(text).map(|()| Setting::Text(text.to_owned())),
            Self::Path(_) => {
                (!text.is_empty() && !text.contains(char::is_control)).then(|| Setting::Text(text.to_owned()))
            }
            Self::Mode => octal(text).map(|_| Setting::Text(text.to_owned())),
            Self::Group => is_group(text).then(|| Setting::Text(text.to_owned())),
            Self::Choice(words) => words.contains(&text).then(|| Setting::Text(text.to_owned())),
            Self::Duration { min, max } => {
                let meant = with_unit(text, *min..=*max).map(|meant| format!("; did you mean \"{meant}\"?"));
                let read = parse_duration(text).filter(|value| value >= min && value <= max).map(Setting::Duration);
                return read.ok_or_else(|| format!("must be {}{}", self.allowed(), meant.unwrap_or_default()));
            }
            Self::Number { .. } => return self.read_number(text.parse().ok()),
            Self::Count { .. } => return self.read_count(text.parse().ok()),
            Self::Switch => text.parse().ok().map(Setting::Switch),
        };
        read.ok_or_else(|| format!("must be {}", self.allowed()))
    }

    /// Reads a value from a file. Its type must match: a number is not read from a string, nor a duration from a
    /// number.
    pub(super) fn read_value(&self, value: &ValueKind) -> Result<Setting, String> {
        let textual = !matches!(self, Self::Number { .. } | Self::Count { .. } | Self::Switch);
        match (self, value) {
            (_, ValueKind::String(text)) if textual => self.read_text(text),
            (_, ValueKind::String(_)) => Err(format!("must be {}, written without quotes", self.allowed())),
            (Self::Addresses, ValueKind::Array(list)) => {
                addresses(texts(list).ok_or("must be a list of strings such as \":9836\"")?.into_iter())
            }
            (Self::Globs, ValueKind::Array(list)) => {
                globs(texts(list).ok_or("must be a list of strings such as \"gpu_memory_*\"")?.into_iter())
            }
            (Self::Hosts, ValueKind::Array(list)) => {
                hosts(texts(list).ok_or("must be a list of strings such as \"gpu1.example.com\"")?.into_iter())
            }
            (Self::Number { .. }, ValueKind::Float(number)) => self.read_number(Some(*number)),
            // Precision is lost only far beyond every range.
            (Self::Number { .. }, ValueKind::I64(number)) => self.read_number(Some(*number as f64)),
            (Self::Count { .. }, ValueKind::I64(count)) => self.read_count(u64::try_from(*count).ok()),
            (Self::Count { .. }, ValueKind::U64(count)) => self.read_count(Some(*count)),
            (Self::Switch, ValueKind::Boolean(on)) => Ok(Setting::Switch(*on)),
            (Self::Duration { min, max }, ValueKind::I64(_) | ValueKind::Float(_)) => {
                let meant = with_unit(&value.to_string(), *min..=*max).unwrap_or_else(|| "5s".to_owned());
                Err(format!("must be {}, written as text with its unit, such as \"{meant}\"", self.allowed()))
            }
            _ => Err(format!("must be {}", self.allowed())),
        }
    }

    fn read_number(&self, number: Option<f64>) -> Result<Setting, String> {
        match (self, number) {
            // A comparison with NaN is false, so NaN is refused too.
            (Self::Number { min, max }, Some(n)) if n >= *min && n <= *max => Ok(Setting::Number(n)),
            _ => Err(format!("must be {}", self.allowed())),
        }
    }

    fn read_count(&self, count: Option<u64>) -> Result<Setting, String> {
        match (self, count) {
            (Self::Count { min, max }, Some(n)) if n >= *min && n <= *max => Ok(Setting::Count(n)),
            _ => Err(format!("must be {}", self.allowed())),
        }
    }
}

/// The strings of a list; `None` if an entry is not a string.
fn texts(list: &[::config::Value]) -> Option<Vec<&str>> {
    list.iter()
        .map(|entry| if let ValueKind::String(text) = &entry.kind { Some(text.as_str()) } else { None })
        .collect()
}

fn globs<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Setting, String> {
    let texts: Vec<_> = texts.collect();
    if let Some(bad) = texts.iter().find(|text| !is_glob(text)) {
        return Err(format!(
            "{} is not a name of letters, digits and _, which may contain *, ? and [ab]",
            preview(bad)
        ));
    }
    if texts.is_empty() {
        return Err(format!("must be {}", Kind::Globs.allowed()));
    }
    Ok(Setting::Text(texts.join(",")))
}

/// Hosts in the form in which requests address them: lower case, IPv6 addresses in brackets.
fn hosts<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Setting, String> {
    let host = |text: &str| {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if bare.parse::<std::net::Ipv6Addr>().is_ok() {
            return Ok(format!("[{}]", bare.to_ascii_lowercase()));
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if text.is_empty() || !text.bytes().all(is_name) {
            return Err(format!("{} is not a name or an IP address without a port", preview(text)));
        }
        Ok(text.trim_end_matches('.').to_ascii_lowercase())
    };
    let hosts = texts.map(host).collect::<Result<Vec<_>, _>>()?;
    if hosts.is_empty() {
        return Err(format!("must be {}", Kind::Hosts.allowed()));
    }
    Ok(Setting::Text(hosts.join(",")))
}

fn addresses<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Setting, String> {
    let mut list = Vec::new();
    for text in texts {
        let address: ListenAddress = text.parse()?;
        if list.contains(&address) {
            return Err(format!("{address} is given twice; give each address once"));
        }
        list.push(address);
    }
    if list.is_empty() {
        return Err(format!("must be {}", Kind::Addresses.allowed()));
    }
    Ok(Setting::Addresses(list))
}

impl Setting {
    // The table fixes the kind of each key, so each key's setter calls the method below for that kind.

    /// The text, if it is set.
    pub(super) fn text(&self) -> Option<String> {
        if let Self::Text(text) = self { Some(text.clone()) } else { None }
    }

    /// A path, if it is set.
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.text().map(PathBuf::from)
    }

    /// The addresses; none if they are not set.
    pub(super) fn addresses(&self) -> Vec<ListenAddress> {
        if let Self::Addresses(list) = self { list.clone() } else { Vec::new() }
    }

    /// Names; none if they are not set.
    pub(super) fn list(&self) -> Vec<String> {
        self.text().map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default()
    }

    /// A time span.
    pub(super) fn duration(&self) -> Duration {
        let Self::Duration(duration) = self else { unreachable!("{self:?} is not a duration") };
        *duration
    }

    /// A number.
    pub(super) fn number(&self) -> f64 {
        let Self::Number(number) = self else { unreachable!("{self:?} is not a number") };
        *number
    }

    /// A whole number.
    pub(super) fn count(&self) -> usize {
        let Self::Count(count) = self else { unreachable!("{self:?} is not a whole number") };
        usize::try_from(*count).unwrap_or(usize::MAX)
    }

    /// Permissions.
    pub(super) fn mode(&self) -> u32 {
        let mode = self.text().and_then(|text| octal(&text));
        mode.unwrap_or_else(|| unreachable!("{self:?} is not a mode"))
    }

    /// On or off.
    pub(super) fn switch(&self) -> bool {
        let Self::Switch(on) = self else { unreachable!("{self:?} is not a switch") };
        *on
    }

    /// The value in TOML; `None` if it is not set.
    pub(super) fn to_toml(&self) -> Option<String> {
        match self {
            Self::Unset => None,
            Self::Text(text) => Some(toml_string(text)),
            Self::Addresses(list) => match list.as_slice() {
                [one] => Some(toml_string(&one.to_string())),
                many => {
                    let texts: Vec<String> = many.iter().map(|a| toml_string(&a.to_string())).collect();
                    Some(format!("[{}]", texts.join(", ")))
                }
            },
            Self::Duration(duration) => Some(toml_string(&format_duration(*duration))),
            Self::Number(number) => Some(number.to_string()),
            Self::Count(count) => Some(count.to_string()),
            Self::Switch(on) => Some(on.to_string()),
        }
    }
}

/// A TOML basic string. No setting contains a control character, so only quotes and backslashes are escaped.
fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
