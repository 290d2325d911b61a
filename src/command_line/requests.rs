//! Runs the subcommand that a command line requests.

use std::ffi::OsString;

use clap::ArgMatches;

use super::completions::COMPLETIONS;
use super::description::{SCENARIOS, description};
use crate::demo;
use crate::subcommand::{Ending, parse, print};

const PROGRAM: &str = "vram-exporter";

/// Runs the subcommand that the command line requests, such as `vram-exporter scenarios`, or says that there is no such
/// one. `args` are those of [`std::env::args_os`]. Returns the exit status; `None` if the first argument is a flag or there is
/// none, so that the command line is the exporter's own.
pub fn subcommand(args: &[OsString]) -> Option<u8> {
    args.get(1).filter(|arg| !arg.as_encoded_bytes().starts_with(b"-"))?;
    Some(parse(description(), args).map_or_else(|status| status, |matches| answer(&matches)))
}

/// Prints what the subcommand prints. Returns the exit status.
fn answer(matches: &ArgMatches) -> u8 {
    let Some((name, given)) = matches.subcommand() else {
        return Ending::wrong(PROGRAM, "no subcommand is given").tell(PROGRAM);
    };
    let program = format!("{PROGRAM} {name}");
    if name != SCENARIOS {
        return print(&program, COMPLETIONS.script(given), 0);
    }
    match scenarios() {
        Ok(text) => print(&program, &text, 0),
        Err(error) => Ending::Wrong(error.to_string()).tell(&program),
    }
}

/// One line for each scenario: its name and a sentence.
fn scenarios() -> anyhow::Result<String> {
    let all = demo::scenarios()?;
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    Ok(all.iter().map(|(name, sentence)| format!("{name:width$}  {sentence}\n")).collect())
}
