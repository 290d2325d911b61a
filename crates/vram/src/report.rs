//! `vram report`: prints what an exporter reports about a job or another workload.
//!
//! Invariants: the command ends within its timeout, whatever the exporter does; no more than a limited number of bytes is
//! read, and nothing that a terminal would interpret is printed.

mod arguments;
mod client;
mod cost;

use clap::ArgMatches;
use text_and_sizes::text::is_plain;
use vram_exporter::subcommand::{Ending, print};

pub(crate) use self::arguments::{NAME, PROGRAM, command};
use crate::format::Format;

/// The exit status when the exporter has no report about the job or workload.
const NO_REPORT: u8 = 2;

/// Prints the reports. Returns the exit status.
pub(crate) fn main(matches: &ArgMatches) -> Result<u8, Ending> {
    let arguments = arguments::read(matches)?;
    let answer = client::ask(&arguments).map_err(Ending::failed)?;
    if answer.trim().is_empty() {
        let why = format!(
            "{} has no report about {}: it has not used a GPU of that machine, or its report is too old to be kept",
            arguments.url,
            arguments.subject()
        );
        return Err(Ending::Failed(why, NO_REPORT));
    }
    let not_json = |error| Ending::failed(format!("{} returned a report that is not JSON: {error}", arguments.url));
    let priced = arguments.price.map(|price| cost::add(&answer, price, arguments.format)).transpose();
    let answer = priced.map_err(not_json)?.unwrap_or(answer);
    let text = shown(&answer, arguments.format).map_err(not_json)?;
    Ok(print(PROGRAM, &text, 0))
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
