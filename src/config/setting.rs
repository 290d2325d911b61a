//! The kinds of value a key may ask for, and one read value. All that concerns a single key is checked here;
//! what several keys owe each other is checked in `check`.

use std::time::Duration;

use ::config::ValueKind;

use super::address::ListenAddress;
use super::forms::{check_api_server, check_node_name, check_url_path, log_filter};
use super::units::{format_duration, parse_duration, with_unit};

/// What a key's value must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Addresses to listen on: a list in a file, repeated as a flag, separated by commas elsewhere.
    Addresses,
    /// A path of the web server.
    UrlPath,
    /// A path of the file system.
    Path,
    /// A time span with its unit, both bounds allowed.
    Duration {
        /// The shortest.
        min: Duration,
        /// The longest.
        max: Duration,
    },
    /// A number with or without a fraction, both bounds allowed.
    Number {
        /// The least.
        min: f64,
        /// The greatest.
        max: f64,
    },
    /// A whole number, both bounds allowed.
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
    /// A name of a Kubernetes node.
    NodeName,
    /// `in-cluster`, or the URL of an API server.
    ApiServer,
}

/// One value, checked against its key's [`Kind`].
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// Deliberately without a value; only keys without a default can be so.
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
    /// What is allowed, to be read after "must be" and in the documentation.
    pub fn allowed(&self) -> String {
        match self {
            Self::Addresses => "one or more addresses".to_owned(),
            Self::UrlPath => "a path that begins with /".to_owned(),
            Self::Path => "a path".to_owned(),
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
        }
    }

    /// Reads a flag's or an environment variable's text; the error says what is allowed.
    pub fn read_text(&self, text: &str) -> Result<Setting, String> {
        let read = match self {
            Self::Addresses => return addresses(text.split(',').map(str::trim)),
            Self::UrlPath => return check_url_path(text).map(|()| Setting::Text(text.to_owned())),
            Self::LogFilter => return log_filter(text).map(Setting::Text),
            Self::NodeName => return check_node_name(text).map(|()| Setting::Text(text.to_owned())),
            Self::ApiServer => return check_api_server(text).map(|()| Setting::Text(text.to_owned())),
            Self::Path => {
                (!text.is_empty() && !text.contains(char::is_control)).then(|| Setting::Text(text.to_owned()))
            }
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

    /// Reads a file's value, whose type must fit: a number is not taken from a string, nor a duration from a number.
    pub fn read_value(&self, value: &ValueKind) -> Result<Setting, String> {
        let textual = !matches!(self, Self::Number { .. } | Self::Count { .. } | Self::Switch);
        match (self, value) {
            (_, ValueKind::String(text)) if textual => self.read_text(text),
            (_, ValueKind::String(_)) => Err(format!("must be {}, written without quotes", self.allowed())),
            (Self::Addresses, ValueKind::Array(list)) => {
                let texts: Option<Vec<&str>> = list
                    .iter()
                    .map(|entry| if let ValueKind::String(text) = &entry.kind { Some(text.as_str()) } else { None })
                    .collect();
                addresses(texts.ok_or("must be a list of texts such as \":9836\"")?.into_iter())
            }
            (Self::Number { .. }, ValueKind::Float(number)) => self.read_number(Some(*number)),
            // Far beyond every range, so that the loss of precision cannot matter.
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
    /// The value as a file gives it; [`Kind::read_value`] reads back the same setting.
    pub fn to_value(&self) -> ValueKind {
        match self {
            Self::Unset => ValueKind::Nil,
            Self::Text(text) => text.clone().into(),
            Self::Addresses(list) => list.iter().map(ToString::to_string).collect::<Vec<_>>().into(),
            Self::Duration(duration) => format_duration(*duration).into(),
            Self::Number(number) => (*number).into(),
            Self::Count(count) => (*count).into(),
            Self::Switch(on) => (*on).into(),
        }
    }

    /// The value as TOML writes it, `None` where it is not set.
    pub fn to_toml(&self) -> Option<String> {
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

/// A basic string of TOML. No setting holds a control character, so quotes and backslashes are all there is to escape.
fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
