//! Reads which subcommand a command line requests, and runs it.

use std::env::vars_os;
use std::ffi::OsString;

use super::completions;
use super::description::{COMPLETIONS, SCENARIOS, SHELL, description};
use crate::subcommand::{Ending, print};
use crate::{advise, demo, report, run};

/// Runs the subcommand that the command line requests, such as `vram-exporter run …`. `args` are those of
/// [`std::env::args_os`]. Returns its exit status; `None` if the command line is the exporter's own.
pub fn subcommand(args: &[OsString]) -> Option<u8> {
    let name = args.get(1)?.to_str()?;
    let own = args.iter().skip(1).cloned();
    Some(match name {
        run::NAME => run::main(own, vars_os()),
        report::NAME => report::main(own),
        advise::NAME => advise::main(own),
        SCENARIOS | COMPLETIONS => match answer(name, args) {
            Ok(text) => print(name, &text, 0),
            Err(ending) => ending.tell(name),
        },
        _ => return None,
    })
}

/// The text for standard output.
fn answer(name: &str, args: &[OsString]) -> Result<String, Ending> {
    let matches = description().try_get_matches_from(args).map_err(|error| Ending::of(name, &error))?;
    match matches.subcommand() {
        Some((COMPLETIONS, given)) => {
            let shell = given.get_one::<String>(SHELL).map(String::as_str).unwrap_or_default();
            Ok(completions::script(shell).to_owned())
        }
        _ => scenarios().map_err(|error| Ending::Wrong(error.to_string())),
    }
}

/// One line for each scenario: its name and a sentence.
fn scenarios() -> Result<String, demo::Error> {
    let all = demo::scenarios()?;
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    Ok(all.iter().map(|(name, sentence)| format!("{name:width$}  {sentence}\n")).collect())
}
