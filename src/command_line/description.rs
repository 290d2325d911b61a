//! The description of the whole command line: the exporter's flags and its subcommands.

use clap::{Arg, ArgAction, Command};

use super::completions::SCRIPTS;
use crate::config;

/// The subcommand that lists the scenarios.
pub(super) const SCENARIOS: &str = "scenarios";
/// The subcommand that prints a completion script.
pub(super) const COMPLETIONS: &str = "completions";
/// The argument of [`COMPLETIONS`].
pub(super) const SHELL: &str = "shell";

/// The exporter's flags, and all subcommands with their flags: what the completion scripts and the manual pages describe.
pub fn description() -> Command {
    let shell = Arg::new(SHELL)
        .value_name("SHELL")
        .required(true)
        .value_parser(SCRIPTS.map(|(name, _)| name))
        .help("The shell. docs/install.md says where each shell looks for its script.");
    // The exporter's flags have a help flag of their own, and without it clap adds none to the subcommands either.
    let with_help = |command: Command| {
        command.arg(Arg::new("help").short('h').long("help").action(ArgAction::Help).help("Print this help and exit."))
    };
    let subcommands = [
        Command::new(SCENARIOS).about("Lists the simulated machines of --demo, with a sentence about each."),
        Command::new(COMPLETIONS).about("Prints the completion script for a shell.").arg(shell),
    ];
    config::command().disable_help_subcommand(true).subcommands(subcommands.map(with_help))
}
