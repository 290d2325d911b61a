//! The description of the whole command line: the exporter's flags and its subcommands.

use clap::{Arg, ArgAction, Command};

use super::completions::COMPLETIONS;
use crate::config;

/// The subcommand that lists the scenarios.
pub(super) const SCENARIOS: &str = "scenarios";

/// The exporter's flags, and all subcommands with their flags: what the completion scripts and the manual pages describe.
pub fn description() -> Command {
    // The exporter's flags have a help flag of their own, and without it clap adds none to the subcommands either.
    let with_help = |command: Command| {
        command.arg(Arg::new("help").short('h').long("help").action(ArgAction::Help).help("Print this help and exit."))
    };
    let subcommands = [
        Command::new(SCENARIOS).about("Lists the simulated machines of --demo, with a sentence about each."),
        COMPLETIONS.command(),
    ];
    config::command().disable_help_subcommand(true).subcommands(subcommands.map(with_help))
}
