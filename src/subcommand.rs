//! What all commands at a terminal have in common, in this program and in the tool `vram`: how they read a wrong command line,
//! and how they end. A `program` is a program or one of its subcommands, such as `vram run`; a message begins with it.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command};

use crate::config::EXIT_USAGE;
use crate::text::untrusted;

/// The longest message about the arguments, in characters.
pub const MESSAGE: usize = 300;
/// The exit status when something other than the command line is the reason.
const FAILURE: u8 = 1;

/// Parses the arguments of a program, which begin with its name.
///
/// # Errors
/// The exit status, if the help was printed or it was said what is wrong.
pub fn parse(description: Command, args: &[OsString]) -> Result<ArgMatches, u8> {
    let program = requested(&description, args);
    description.try_get_matches_from(args).map_err(|error| Ending::of(&program, &error).tell(&program))
}

/// The program with the subcommand that the arguments request, for messages.
fn requested(description: &Command, args: &[OsString]) -> String {
    let mut known = description.get_subcommands().map(Command::get_name);
    let name = description.get_name();
    match known.find(|known| args.get(1).is_some_and(|first| first == known)) {
        Some(subcommand) => format!("{name} {subcommand}"),
        None => name.to_owned(),
    }
}

/// The subcommand that prints a completion script, from the scripts by the names of their shells.
pub struct Completions<const N: usize>(pub [(&'static str, &'static str); N]);

impl<const N: usize> Completions<N> {
    const SHELL: &str = "shell";

    /// The description of the subcommand.
    pub fn command(&self) -> Command {
        let shell = Arg::new(Self::SHELL)
            .value_name("SHELL")
            .required(true)
            .value_parser(self.0.map(|(name, _)| name))
            .help("The shell. docs/install.md says where each shell looks for its script.");
        Command::new("completions").about("Prints the completion script for a shell.").arg(shell)
    }

    /// The script that the arguments request; empty without a shell, which the description requires.
    pub fn script(&self, matches: &ArgMatches) -> &'static str {
        let shell = matches.get_one::<String>(Self::SHELL).map(String::as_str);
        self.0.iter().find(|(name, _)| shell == Some(name)).map_or("", |(_, script)| script)
    }
}

/// Why a command ends without having done its work.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// `--help` or `--version`: the text for standard output.
    Help(String),
    /// The arguments are wrong.
    Wrong(String),
    /// Another reason, with the exit status.
    Failed(String, u8),
}

impl Ending {
    /// From what clap reports about the command line.
    pub fn of(program: &str, error: &clap::Error) -> Self {
        let text = error.to_string();
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            return Self::Help(text);
        }
        // Without what clap appends: the usage, and a second hint at the help.
        let told = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|end| text.find(end)).min();
        Self::wrong(program, text[..told.unwrap_or(text.len())].trim_start_matches("error: "))
    }

    /// The arguments are wrong for a reason that the help explains.
    pub fn wrong(program: &str, why: &str) -> Self {
        Self::Wrong(format!("{}; see {program} --help", untrusted(why, MESSAGE)))
    }

    /// The command fails because of an error, of which the causes are said too.
    pub fn failed(error: impl Display) -> Self {
        Self::Failed(format!("{error:#}"), FAILURE)
    }

    /// Prints the help, or says what is wrong. Returns the exit status.
    pub fn tell(self, program: &str) -> u8 {
        match self {
            Self::Help(text) => print(program, &text, 0),
            Self::Wrong(why) => refuse(program, &why, EXIT_USAGE),
            Self::Failed(why, status) => refuse(program, &why, status),
        }
    }
}

/// Writes a text to standard output. Returns the exit status: `status`, unless the text could not be written.
pub fn print(program: &str, text: &str, status: u8) -> u8 {
    match write_out(text.as_bytes()) {
        Ok(()) => status,
        Err(error) => refuse(program, &format!("standard output could not be written: {error}"), FAILURE),
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

/// Writes a line to standard error.
pub fn say(program: &str, text: &str) {
    // If standard error is closed, nothing is left to write to.
    let _ = writeln!(io::stderr().lock(), "{program}: {text}");
}

/// Says why the program fails. Returns the exit status.
fn refuse(program: &str, why: &str, status: u8) -> u8 {
    say(program, why);
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_subcommand_if_there_is_one() {
        let vram = Command::new("vram").subcommand(Command::new("run"));
        let requested = |args: &[&str]| requested(&vram, &args.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(requested(&["vram", "run", "--rate=0"]), "vram run");
        assert_eq!(requested(&["vram", "reprot"]), "vram");
        assert_eq!(requested(&["vram", "--format=xml"]), "vram");
        assert_eq!(requested(&["vram"]), "vram");
    }

    #[test]
    fn what_is_wrong_is_one_line_with_one_hint_at_the_help() {
        let command = || Command::new("x").arg(Arg::new("format").long("format").value_parser(["text", "json"]));
        for (arg, told) in [
            ("--format=xml", "invalid value 'xml' for '--format <format>' [possible values: text, json]"),
            ("--fo\u{202e}o", "unexpected argument '--fo\\u{202e}o' found"),
        ] {
            let error = command().try_get_matches_from(["x", arg]).unwrap_err();
            let Ending::Wrong(why) = Ending::of("x", &error) else { panic!("{error}") };
            assert!(why.starts_with(told) && why.ends_with("; see x --help"), "{why}");
            assert_eq!(why.matches("--help").count(), 1, "{why}");
        }
    }
}
