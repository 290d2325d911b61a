//! Scenarios: their grammar in TOML, the built-in scenarios, and how a scenario is read from a file.
//!
//! Reading checks only the grammar; whether the scenario is possible is checked when a machine is built from it.

pub(crate) mod builtin;
pub(crate) mod bytes;
pub(crate) mod curves;
pub(crate) mod grammar;
pub(crate) mod units;

use std::path::Path;

use serde::de::DeserializeOwned;

use grammar::Scenario;

/// The largest scenario that is read.
const MAX_BYTES: u64 = 1024 * 1024;

/// What is wrong with a scenario or control file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("{file}: {cause}")]
    Unreadable { file: String, cause: std::io::Error },
    /// Neither a file nor a built-in name.
    #[error("no scenario `{name}`: neither a file nor one of the built-in {}", builtin::names())]
    Unknown { name: String },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{file}: {}", cause.to_string().trim_end().replace('\n', "\n  "))]
    Grammar { file: String, cause: Box<toml::de::Error> },
    /// An impossible value.
    #[error("{file}: {key}: {what}")]
    Impossible { file: String, key: String, what: String },
}

/// A scenario and the name of its source.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: String,
    pub(crate) scenario: Scenario,
}

/// Loads a built-in scenario by its name, or a file by its path.
pub(crate) fn load(name: &str) -> Result<Source, Problem> {
    let (file, text) = match builtin::find(name) {
        Some(text) => (format!("built-in scenario {name}"), text.to_owned()),
        None if Path::new(name).exists() => (name.to_owned(), read(Path::new(name))?),
        None => return Err(Problem::Unknown { name: name.to_owned() }),
    };
    let scenario = parse(&file, &text)?;
    Ok(Source { file, scenario })
}

/// Parses a scenario or a control file.
pub(crate) fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, Problem> {
    toml::from_str(text).map_err(|cause| Problem::Grammar { file: file.to_owned(), cause: Box::new(cause) })
}

/// Checks the file before opening it, because opening a FIFO would wait for a writer, and reading a device may never
/// end.
fn read(path: &Path) -> Result<String, Problem> {
    let refused = |why: &str| std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
    let text = std::fs::metadata(path).and_then(|found| {
        if !found.is_file() {
            Err(refused("is not a regular file"))
        } else if found.len() > MAX_BYTES {
            Err(refused("is larger than 1 MiB"))
        } else {
            std::fs::read_to_string(path)
        }
    });
    text.map_err(|cause| Problem::Unreadable { file: path.display().to_string(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let large = folder.path().join("large.toml");
        std::fs::File::create(&large).unwrap().set_len(MAX_BYTES + 1).unwrap();
        for (path, why) in [
            (Path::new("/dev/zero"), "is not a regular file"),
            (folder.path(), "is not a regular file"),
            (&large, "is larger than 1 MiB"),
        ] {
            let refused = read(path).unwrap_err().to_string();
            assert_eq!(refused, format!("{}: {why}", path.display()));
        }
    }
}
