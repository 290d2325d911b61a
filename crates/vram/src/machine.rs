//! `vram` alone: what is on this machine and who holds it, read once, as a table or as JSON.

mod table;

use std::ffi::OsString;

use clap::{Arg, ArgMatches};
use vram_exporter::app;
use vram_exporter::config::EXIT_USAGE;
use vram_exporter::subcommand::{FAILURE, print, refuse};

use crate::{PROGRAM, configuration, flag};

/// The exit status when no driver can be opened.
const NO_DRIVER: u8 = 2;

/// The flags.
pub(crate) fn flags() -> impl Iterator<Item = Arg> {
    let format = flag("format", "FORMAT", "A table for people, or JSON.");
    std::iter::once(format.default_value("table").value_parser(["table", "json"])).chain(configuration::flags())
}

/// Reads everything once and prints it. `env` are those of [`std::env::vars_os`]. Returns the exit status.
pub(crate) fn main(matches: &ArgMatches, env: impl IntoIterator<Item = (OsString, OsString)>) -> u8 {
    let config = match configuration::read(matches, env) {
        Ok(config) => config,
        Err(ending) => return ending.tell(PROGRAM),
    };
    if let Err(error) = app::check(&config) {
        return refuse(PROGRAM, &error.to_string(), EXIT_USAGE);
    }
    let written = app::machine(config).and_then(|machine| {
        let text = match matches.get_one::<String>("format").map(String::as_str) {
            Some("json") => serde_json::to_string_pretty(&machine)? + "\n",
            _ => table::of(&machine, table::Style::of_standard_output()),
        };
        Ok((text, machine.driver.up))
    });
    match written {
        Ok((text, up)) => print(PROGRAM, &text, if up { 0 } else { NO_DRIVER }),
        Err(error) => refuse(PROGRAM, &format!("{error:#}"), FAILURE),
    }
}
