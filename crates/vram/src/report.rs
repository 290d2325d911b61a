//! `vram report`: prints what an exporter reports about a job or another workload.
//!
//! Invariants: the command ends within its timeout, whatever the exporter does; no more than a limited number of bytes is
//! read, and nothing that a terminal would interpret is printed.

mod arguments;
mod client;

use clap::ArgMatches;
use text_and_sizes::text::is_plain;
use vram_exporter::subcommand::{self, FAILURE};

use self::arguments::{Format, PROGRAM};
pub(crate) use self::arguments::{NAME, command};

/// The exit status when the exporter has no report about the job or workload.
const NO_REPORT: u8 = 2;

/// Prints the reports. Returns the exit status.
pub(crate) fn main(matches: &ArgMatches) -> u8 {
    let arguments = match arguments::read(matches) {
        Ok(arguments) => arguments,
        Err(ending) => return ending.tell(PROGRAM),
    };
    let answer = match client::ask(&arguments) {
        Ok(answer) => answer,
        Err(error) => return subcommand::refuse(PROGRAM, &error.to_string(), FAILURE),
    };
    if answer.trim().is_empty() {
        let why = format!(
            "{} has no report about {}: it has not used a GPU of that machine, or its report is too old to be kept",
            arguments.url,
            arguments.subject()
        );
        return subcommand::refuse(PROGRAM, &why, NO_REPORT);
    }
    match shown(&answer, arguments.format) {
        Ok(text) => subcommand::print(PROGRAM, &text, 0),
        Err(error) => subcommand::refuse(
            PROGRAM,
            &format!("{} returned a report that is not JSON: {error}", arguments.url),
            FAILURE,
        ),
    }
}

/// The reports as they are printed.
fn shown(answer: &str, format: Format) -> Result<String, serde_json::Error> {
    let plain = |line: &str| line.chars().map(|c| if is_plain(c) { c } else { ' ' }).collect::<String>() + "\n";
    if format == Format::Json {
        answer.lines().try_for_each(|line| serde_json::from_str::<serde::de::IgnoredAny>(line).map(drop))?;
    }
    Ok(answer.lines().map(plain).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_interprets_is_printed() {
        assert_eq!(shown("a\u{1b}[31m\u{202e}é\nb\r\n", Format::Text).unwrap(), "a [31m é\nb\n");
        assert_eq!(shown("{\"a\":1}\n{}\n", Format::Json).unwrap(), "{\"a\":1}\n{}\n");
        assert!(shown("<html>", Format::Json).is_err());
    }
}
