//! The flag that says how a result is printed, for the commands that print text or JSON.

use clap::{Arg, ArgMatches};

use crate::flag;

/// How a result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

impl Format {
    /// The flag, with what the command's help says about it.
    pub(crate) fn flag(help: &'static str) -> Arg {
        flag("format", "FORMAT", help).default_value("text").value_parser(["text", "json"])
    }

    /// What was given.
    pub(crate) fn given(matches: &ArgMatches) -> Self {
        match matches.get_one::<String>("format").map(String::as_str) {
            Some("json") => Self::Json,
            _ => Self::Text,
        }
    }
}
