//! `vram`: the tool for GPU memory at a terminal. It shows what is on this machine and who holds it, measures a command, prints what
//! a running exporter reports about a job, and advises how much memory workloads should request.
//!
//! ```text
//!  vram            machine ──> the exporter's own readings, once ──> table or JSON
//!  vram run        run ──> a command and the GPUs ──> report
//!  vram report     report ──> a running exporter
//!  vram advise     advise ──> a Prometheus server
//! ```
//!
//! Invariant: the command line is parsed once, from one description, which is also that of the completion scripts and the
//! manual pages.

mod advise;
mod completions;
mod configuration;
mod machine;
mod report;
mod run;

use std::ffi::OsString;

use clap::{Arg, ArgMatches, Command};
use vram_exporter::subcommand::{Ending, print};

use self::completions::SCRIPTS;

/// The name of the program, with which its messages begin.
const PROGRAM: &str = "vram";
/// The subcommand that prints a completion script, and its argument.
const COMPLETIONS: &str = "completions";
const SHELL: &str = "shell";

/// Runs the tool. `args` are those of [`std::env::args_os`], `env` those of [`std::env::vars_os`]. Returns the exit status.
pub fn main(args: impl IntoIterator<Item = OsString>, env: impl IntoIterator<Item = (OsString, OsString)>) -> u8 {
    let args: Vec<_> = args.into_iter().collect();
    let matches = match description().try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) => {
            let program = named(&args);
            return Ending::of(&program, &error).tell(&program);
        }
    };
    match matches.subcommand() {
        Some((run::NAME, given)) => run::main(given, env),
        Some((report::NAME, given)) => report::main(given),
        Some((advise::NAME, given)) => advise::main(given),
        Some((_, given)) => print(PROGRAM, script(given), 0),
        None => machine::main(&matches, env),
    }
}

/// The program with the subcommand that the arguments request, for messages.
fn named(args: &[OsString]) -> String {
    let requested = args.get(1).and_then(|name| name.to_str());
    let is_one = |name: &&str| description().get_subcommands().any(|command| command.get_name() == *name);
    requested.filter(is_one).map_or_else(|| PROGRAM.to_owned(), |name| format!("{PROGRAM} {name}"))
}

fn script(matches: &ArgMatches) -> &'static str {
    let shell = matches.get_one::<String>(SHELL).map(String::as_str);
    SCRIPTS.iter().find(|(name, _)| shell == Some(name)).map_or("", |(_, script)| script)
}

/// The description of the command line: what is parsed, and what the completion scripts and the manual pages describe.
pub fn description() -> Command {
    let shell = Arg::new(SHELL)
        .value_name("SHELL")
        .required(true)
        .value_parser(SCRIPTS.map(|(name, _)| name))
        .help("The shell. docs/install.md says where each shell looks for its script.");
    Command::new(PROGRAM)
        .about("Shows the memory of the NVIDIA GPUs of this machine and who holds it.")
        .after_help(
            "The exit status is 0, or 2 if there is no driver, 1 if the GPUs cannot be read, and 64 if the arguments are wrong.",
        )
        .version(env!("CARGO_PKG_VERSION"))
        .max_term_width(100)
        .args_conflicts_with_subcommands(true)
        .args(machine::flags())
        .subcommands([
            run::command(),
            report::command(),
            advise::command(),
            Command::new(COMPLETIONS).about("Prints the completion script for a shell.").arg(shell),
        ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_consistent() {
        description().debug_assert();
    }

    #[test]
    fn a_message_names_the_subcommand_if_there_is_one() {
        let named = |args: &[&str]| named(&args.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(named(&["vram", "run", "--rate=0"]), "vram run");
        assert_eq!(named(&["vram", "reprot"]), "vram");
        assert_eq!(named(&["vram", "--format=xml"]), "vram");
        assert_eq!(named(&["vram"]), "vram");
    }
}
