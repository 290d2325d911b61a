//! `vram` alone: what is on this machine and who holds it, read once, as a table or as JSON.

mod table;

use std::ffi::OsString;

use clap::{Arg, ArgMatches};
use vram_exporter::app;
use vram_exporter::subcommand::{Ending, print};

use crate::{PROGRAM, configuration, flag};

/// The exit status when no driver can be opened.
const NO_DRIVER: u8 = 2;

/// The flags.
pub(crate) fn flags() -> impl Iterator<Item = Arg> {
    let format = flag("format", "FORMAT", "A table for people, or JSON.");
    std::iter::once(format.default_value("table").value_parser(["table", "json"])).chain(configuration::flags())
}

/// Reads everything once and prints it. `env` are those of [`std::env::vars_os`]. Returns the exit status.
pub(crate) fn main(matches: &ArgMatches, env: impl IntoIterator<Item = (OsString, OsString)>) -> Result<u8, Ending> {
    let config = configuration::read(matches, env)?;
    app::check(&config).map_err(|error| Ending::Wrong(error.to_string()))?;
    let machine = app::machine(config).map_err(Ending::failed)?;
    let text = match matches.get_one::<String>("format").map(String::as_str) {
        Some("json") => serde_json::to_string_pretty(&machine).map_err(Ending::failed)? + "\n",
        _ => table::of(&machine, table::Style::of_standard_output()),
    };
    Ok(print(PROGRAM, &text, if machine.driver.up { 0 } else { NO_DRIVER }))
}
