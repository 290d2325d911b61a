//! `vram leaks`: asks a running process, through the exporter to which it reports, which lines of its program hold more GPU memory
//! at each look.
//!
//! Invariants: the command ends in bounded time, whatever the exporter does; no more than a limited number of bytes is read, and
//! nothing that a terminal would interpret is printed. What is unknown is said to be unknown.

mod arguments;
mod client;
mod text;

use clap::ArgMatches;
use serde_json::{Value, json};
use vram_exporter::subcommand::{Ending, print};

use self::arguments::Arguments;
pub(crate) use self::arguments::{NAME, PROGRAM, command};
use self::client::Device;
use crate::format::Format;

/// Asks and prints the answer. Returns the exit status.
pub(crate) fn main(matches: &ArgMatches) -> Result<u8, Ending> {
    let arguments = arguments::read(matches)?;
    let devices = client::ask(&arguments).map_err(Ending::failed)?;
    let shown = match arguments.format {
        Format::Text => text::of(&devices, &arguments),
        Format::Json => json_of(&devices, &arguments).to_string() + "\n",
    };
    Ok(print(PROGRAM, &shown, 0))
}

/// One object. A value that is unknown is absent.
fn json_of(devices: &[Device], arguments: &Arguments) -> Value {
    json!({ "version": 1, "pid": arguments.pid, "devices": devices })
}
