//! `vram`: the tool for GPU memory at a terminal. It shows what is on this machine and who holds it, measures a command, prints what
//! a running exporter reports about a job, asks a process which of its lines hold more and more memory, and advises how much memory
//! workloads should request.
//!
//! ```text
//!  vram            machine ──> the exporter's own readings, once ──> table or JSON
//!  vram run        run ──> a command and the GPUs ──> report
//!  vram report     report ──> a running exporter
//!  vram leaks      leaks ──> a running exporter ──> a process that reports to it
//!  vram advise     advise ──> a Prometheus server
//! ```
//!
//! Invariant: the command line is parsed once, from one description, which is also that of the completion scripts and the
//! manual pages.

mod advise;
mod completions;
mod configuration;
mod format;
mod leaks;
mod machine;
mod report;
mod run;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Command, value_parser};
use vram_exporter::subcommand::{parse, print};

use self::completions::COMPLETIONS;

/// The name of the program, with which its messages begin.
const PROGRAM: &str = "vram";

/// Runs the tool. `args` are those of [`std::env::args_os`], `env` those of [`std::env::vars_os`]. Returns the exit status.
pub fn main(args: impl IntoIterator<Item = OsString>, env: impl IntoIterator<Item = (OsString, OsString)>) -> u8 {
    let args: Vec<_> = args.into_iter().collect();
    let matches = match parse(description(), &args) {
        Ok(matches) => matches,
        Err(status) => return status,
    };
    let (program, ended) = match matches.subcommand() {
        Some((run::NAME, given)) => (run::PROGRAM, run::main(given, env)),
        Some((report::NAME, given)) => (report::PROGRAM, report::main(given)),
        Some((leaks::NAME, given)) => (leaks::PROGRAM, leaks::main(given)),
        Some((advise::NAME, given)) => (advise::PROGRAM, advise::main(given)),
        Some((_, given)) => (PROGRAM, Ok(print(PROGRAM, COMPLETIONS.script(given), 0))),
        None => (PROGRAM, machine::main(&matches, env)),
    };
    ended.unwrap_or_else(|ending| ending.tell(program))
}

/// The description of the command line: what is parsed, and what the completion scripts and the manual pages describe.
pub fn description() -> Command {
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
            leaks::command(),
            advise::command(),
            COMPLETIONS.command(),
        ])
}

/// A flag with a value.
fn flag(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// The flag that says how a server is asked, for the commands that ask one.
fn http_config() -> Arg {
    let help = "Password, token, certificates and headers, in the format of promtool's HTTP config.";
    flag("http-config", "FILE", help).value_parser(value_parser!(PathBuf))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_consistent() {
        description().debug_assert();
    }
}
