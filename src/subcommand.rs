//! What all subcommands have in common: how they read a wrong command line, and how they end.

use std::io::{self, Write};

use clap::error::ErrorKind;

use crate::config::EXIT_USAGE;
use crate::text::untrusted;

/// The longest message about the arguments, in characters.
pub(crate) const MESSAGE: usize = 300;
/// The exit status when something outside the command line failed.
pub(crate) const FAILURE: u8 = 1;

/// Why a subcommand ends before its work begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// `--help`: the text for standard output.
    Help(String),
    /// The arguments are wrong.
    Wrong(String),
}

impl Ending {
    /// From what clap reports about the command line of a subcommand.
    pub(crate) fn of(name: &str, error: &clap::Error) -> Self {
        let text = error.to_string();
        if error.kind() == ErrorKind::DisplayHelp {
            return Self::Help(text);
        }
        // Without what clap appends: the usage, and a second hint at the help.
        let told = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|end| text.find(end)).min();
        Self::wrong(name, text[..told.unwrap_or(text.len())].trim_start_matches("error: "))
    }

    /// The arguments are wrong for a reason that the help explains.
    pub(crate) fn wrong(name: &str, why: &str) -> Self {
        Self::Wrong(format!("{}; see vram-exporter {name} --help", untrusted(why, MESSAGE)))
    }

    /// Prints the help, or says what is wrong. Returns the exit status.
    pub(crate) fn tell(self, name: &str) -> u8 {
        match self {
            Self::Help(text) => print(name, &text, 0),
            Self::Wrong(why) => refuse(name, &why, EXIT_USAGE),
        }
    }
}

/// Writes a text to standard output. Returns the exit status: `status`, unless the text could not be written.
pub(crate) fn print(name: &str, text: &str, status: u8) -> u8 {
    match write_out(text.as_bytes()) {
        Ok(()) => status,
        Err(error) => refuse(name, &format!("standard output could not be written: {error}"), FAILURE),
    }
}

/// Writes a text to standard output. That a reader closes it early is no error.
///
/// # Errors
/// When the text cannot be written.
pub fn write_out(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Writes a line about a subcommand to standard error.
pub(crate) fn say(name: &str, text: &str) {
    // If standard error is closed, nothing is left to write to.
    let _ = writeln!(io::stderr().lock(), "vram-exporter {name}: {text}");
}

/// Says why a subcommand fails. Returns the exit status.
pub(crate) fn refuse(name: &str, why: &str, status: u8) -> u8 {
    say(name, why);
    status
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn what_is_wrong_is_one_line_with_one_hint_at_the_help() {
        let command = || Command::new("x").arg(Arg::new("format").long("format").value_parser(["text", "json"]));
        for (arg, told) in [
            ("--format=xml", "invalid value 'xml' for '--format <format>' [possible values: text, json]"),
            ("--fo\u{202e}o", "unexpected argument '--fo\\u{202e}o' found"),
        ] {
            let error = command().try_get_matches_from(["x", arg]).unwrap_err();
            let Ending::Wrong(why) = Ending::of("x", &error) else { panic!("{error}") };
            assert!(why.starts_with(told) && why.ends_with("; see vram-exporter x --help"), "{why}");
            assert_eq!(why.matches("--help").count(), 1, "{why}");
        }
    }
}
