//! Runs the subcommand that a command line requests.

use std::ffi::OsString;

use clap::ArgMatches;

use super::completions;
use super::description::{COMPLETIONS, SCENARIOS, SHELL, description};
use crate::demo;
use crate::subcommand::{Ending, print};

const PROGRAM: &str = "vram-exporter";

/// Runs the subcommand that the command line requests, such as `vram-exporter scenarios`, or says that there is no such
/// one. `args` are those of [`std::env::args_os`]. Returns the exit status; `None` if the first argument is a flag or there is
/// none, so that the command line is the exporter's own.
pub fn subcommand(args: &[OsString]) -> Option<u8> {
    let first = args.get(1).filter(|arg| !arg.as_encoded_bytes().starts_with(b"-"))?;
    let command = description();
    let known = command.get_subcommands().map(|known| known.get_name()).find(|name| first == name);
    let program = known.map_or_else(|| PROGRAM.to_owned(), |name| format!("{PROGRAM} {name}"));
    Some(match command.try_get_matches_from(args) {
        Ok(matches) => answer(&program, &matches),
        Err(error) => Ending::of(&program, &error).tell(&program),
    })
}

/// Prints what the subcommand prints.
fn answer(program: &str, matches: &ArgMatches) -> u8 {
    match matches.subcommand() {
        Some((COMPLETIONS, given)) => {
            let shell = given.get_one::<String>(SHELL).map(String::as_str).unwrap_or_default();
            print(program, completions::script(shell), 0)
        }
        Some((SCENARIOS, _)) => match scenarios() {
            Ok(text) => print(program, &text, 0),
            Err(error) => Ending::Wrong(error.to_string()).tell(program),
        },
        _ => Ending::wrong(program, "no subcommand is given").tell(program),
    }
}

/// One line for each scenario: its name and a sentence.
fn scenarios() -> Result<String, demo::Error> {
    let all = demo::scenarios()?;
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    Ok(all.iter().map(|(name, sentence)| format!("{name:width$}  {sentence}\n")).collect())
}
