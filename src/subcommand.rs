//! What the subcommands that ask a server have in common: how they read a wrong command line, and how they end.

use std::io::{self, Write};

use clap::error::ErrorKind;

use crate::text::untrusted;

/// The longest message about the arguments, in characters.
pub(crate) const MESSAGE: usize = 300;
/// The exit status when something outside the command line failed.
pub(crate) const FAILURE: u8 = 1;

/// Why a subcommand ends before it asks.
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
        // Without the usage that clap appends.
        let told = text.split("\n\nUsage:").next().unwrap_or_default().trim_start_matches("error: ");
        Self::Wrong(format!("{}; see vram-exporter {name} --help", untrusted(told, MESSAGE)))
    }
}

/// Writes a text to standard output. Returns the exit status: `status`, unless the text could not be written.
pub(crate) fn print(name: &str, text: &str, status: u8) -> u8 {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader may close standard output early.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            refuse(name, &format!("standard output could not be written: {error}"), FAILURE)
        }
        _ => status,
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
