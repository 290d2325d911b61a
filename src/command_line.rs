//! The subcommands: which one a command line requests, and those that print something about the program itself, the demo's
//! scenarios and completion scripts for shells.
//!
//! Invariant: the scripts and the manual pages come from the descriptions that `--help` comes from, so they name every
//! setting.

mod completions;
mod description;
mod requests;

pub use crate::subcommand::write_out;
pub use description::description;
pub use requests::subcommand;
