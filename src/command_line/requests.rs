//! Reads the command line of these subcommands and answers it.

use std::ffi::OsString;

use clap::error::ErrorKind;

use super::completions;
use super::description::{COMPLETIONS, SCENARIOS, SHELL, description};
use crate::demo;
use crate::subcommand::MESSAGE;
use crate::text::untrusted;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments are wrong.
    #[error("{0}")]
    Arguments(String),
    /// There are no scenarios.
    #[error(transparent)]
    Scenarios(#[from] demo::Error),
}

/// Whether the command line requests one of these subcommands.
pub fn is_requested(args: &[OsString]) -> bool {
    args.get(1).is_some_and(|first| first == SCENARIOS || first == COMPLETIONS)
}

/// The text for standard output. `args` are those of [`std::env::args_os`].
///
/// # Errors
/// When the arguments are wrong, or the program has no simulator and the scenarios are requested.
pub fn answer(args: Vec<OsString>) -> Result<String, Error> {
    let matches = match description().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => return Ok(error.to_string()),
        Err(error) => return Err(Error::Arguments(in_one_line(&error.to_string()))),
    };
    match matches.subcommand() {
        Some((COMPLETIONS, given)) => {
            let shell = given.get_one::<String>(SHELL).map(String::as_str).unwrap_or_default();
            Ok(completions::script(shell).to_owned())
        }
        _ => Ok(scenarios()?),
    }
}

/// The message without the usage that clap appends, in one line.
fn in_one_line(message: &str) -> String {
    let told = ["\n\nUsage:", "\n\nFor more information"]
        .iter()
        .fold(message, |told, end| told.split(end).next().unwrap_or_default())
        .trim_start_matches("error: ");
    format!("{}; see vram-exporter --help", untrusted(told, MESSAGE))
}

/// One line for each scenario: its name and a sentence.
fn scenarios() -> Result<String, demo::Error> {
    let all = demo::scenarios()?;
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    Ok(all.iter().map(|(name, sentence)| format!("{name:width$}  {sentence}\n")).collect())
}
