//! A scenario: its grammar in TOML, the built-in ones, and reading one from a file.
//!
//! What is read here is only what the author wrote; whether it is possible is judged when a machine is built of it.

pub(crate) mod builtin;
pub(crate) mod bytes;
pub(crate) mod curves;
pub(crate) mod grammar;
pub(crate) mod units;

use std::path::Path;

use grammar::{Control, Scenario};

/// What is wrong with a scenario or control file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// The file cannot be read.
    #[error("{file}: {cause}")]
    Unreadable { file: String, cause: std::io::Error },
    /// Neither a file nor a built-in name.
    #[error("no scenario `{name}`: neither a file nor one of the built-in {}", builtin::names())]
    Unknown { name: String },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{file}: {}", cause.to_string().trim_end().replace('\n', "\n  "))]
    Grammar { file: String, cause: Box<toml::de::Error> },
    /// A value that cannot be.
    #[error("{file}: {key}: {what}")]
    Impossible { file: String, key: String, what: String },
}

/// A scenario with the name of where it came from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: String,
    pub(crate) scenario: Scenario,
}

/// A built-in scenario by its name, or a file by its path.
pub(crate) fn load(name: &str) -> Result<Source, Problem> {
    let (file, text) = match builtin::find(name) {
        Some(text) => (format!("built-in scenario {name}"), text.to_owned()),
        None if Path::new(name).exists() => (name.to_owned(), read(Path::new(name))?),
        None => return Err(Problem::Unknown { name: name.to_owned() }),
    };
    let scenario = parse(&file, &text)?;
    Ok(Source { file, scenario })
}

/// What a scenario holds.
pub(crate) fn parse(file: &str, text: &str) -> Result<Scenario, Problem> {
    toml::from_str(text).map_err(|cause| Problem::Grammar { file: file.to_owned(), cause: Box::new(cause) })
}

/// What a control file holds.
pub(crate) fn parse_control(file: &Path, text: &str) -> Result<Control, Problem> {
    toml::from_str(text).map_err(|cause| Problem::Grammar { file: file.display().to_string(), cause: Box::new(cause) })
}

fn read(path: &Path) -> Result<String, Problem> {
    std::fs::read_to_string(path).map_err(|cause| Problem::Unreadable { file: path.display().to_string(), cause })
}
