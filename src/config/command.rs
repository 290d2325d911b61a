//! The description of the command line: a flag for every key of the table, and the few flags that are not keys.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ValueHint, value_parser};

use super::keys::{Key, SECTIONS, keys};
use super::setting::Kind;

/// A flag that is not a key: its name, the name of its value if it takes one, and its help.
pub(super) type Extra = (&'static str, Option<&'static str>, &'static str);

/// The scenario used if `--demo` has no value.
const DEFAULT_SCENARIO: &str = "demo";

/// All flags that are not keys.
pub(super) const EXTRAS: &[Extra] = &[
    ("config.file", Some("FILE"), "Configuration file, .toml, .yaml or .yml. [env: VRAM_EXPORTER_CONFIG_FILE]"),
    ("once", None, "Print one scrape and exit."),
    ("check-config", None, "Check the configuration, print what is wrong, and exit."),
    ("print-config", None, "Print the effective configuration with comments, and exit."),
    (
        "demo",
        Some("SCENARIO"),
        "Run on simulated GPUs. The scenario is a file, or one of demo, idle-h200, busy-h200, eight-h200, mig-a100, mig-h100, \
         mixed, old-driver, unified-memory, gb10, throttled, dra and hostile-names. [default: demo]",
    ),
    ("version", None, "Print the version and exit."),
    ("help", None, "Print this help and exit."),
];

/// Flags under the names that other exporters use, each with its key.
pub(super) const ALIASES: [(&str, &str); 1] = [("web.config.file", "web.config-file")];

/// The flags and the help, without the subcommands: those read the command line themselves.
pub(crate) fn command() -> clap::Command {
    let simulated = if cfg!(feature = "demo") { " (simulated GPUs: built in)" } else { "" };
    let mut command = clap::Command::new("vram-exporter")
        .about("Prometheus exporter for the memory of NVIDIA GPUs: true peaks and owners.")
        .override_usage(
            "vram-exporter [FLAGS]\n       \
             vram-exporter scenarios\n       \
             vram-exporter completions SHELL",
        )
        .after_help(
            "Every key is a flag, an environment variable and a key of the configuration file: --memory.rate=100, \
             VRAM_EXPORTER_MEMORY_RATE=100, or rate = 100 under [memory]. Flags win over the environment, the \
             environment over the file, and the file over the defaults.\n\n\
             vram-exporter scenarios lists the simulated machines of --demo, and vram-exporter completions prints \
             the completion script for bash, fish or zsh. vram, a program of its own, shows the GPUs at a terminal: see vram --help.",
        )
        .version(format!("{}{simulated}", env!("CARGO_PKG_VERSION")))
        .bin_name("vram-exporter")
        .max_term_width(100)
        .next_line_help(true)
        .disable_help_flag(true)
        .disable_version_flag(true);
    for (section, title) in SECTIONS {
        for key in keys().filter(|key| key.parts().0 == *section) {
            command = command.arg(key_flag(key).help_heading(*title));
        }
    }
    command.args(EXTRAS.iter().map(extra_flag))
}

fn key_flag(key: &'static Key) -> Arg {
    let default = key.default.map(|text| format!(" [default: {text}]")).unwrap_or_default();
    let arg = Arg::new(key.name)
        .long(key.name)
        .visible_aliases(ALIASES.iter().filter(|(_, name)| *name == key.name).map(|(alias, _)| *alias))
        .value_name(key.kind.described().0)
        .help(format!("{}{default}", key.full_help()))
        .action(ArgAction::Append)
        .allow_negative_numbers(true)
        .value_parser(value_parser!(OsString));
    let arg = match key.kind {
        Kind::Path("DIR", _) | Kind::Folder(_) => arg.value_hint(ValueHint::DirPath),
        Kind::Path(..) => arg.value_hint(ValueHint::FilePath),
        _ => arg.value_hint(ValueHint::Other),
    };
    match key.kind {
        Kind::Switch(_) => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => arg.num_args(1),
    }
}

fn extra_flag(&(name, value_name, help): &Extra) -> Arg {
    let arg = Arg::new(name).long(name).help(help).help_heading("Other");
    match (name, value_name) {
        ("help", _) => arg.short('h').action(ArgAction::Help),
        ("version", _) => arg.short('V').action(ArgAction::Version),
        (_, None) => arg.action(ArgAction::SetTrue),
        ("demo", Some(value)) => arg
            .value_name(value)
            .value_hint(ValueHint::FilePath)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value(DEFAULT_SCENARIO)
            .value_parser(value_parser!(OsString)),
        (_, Some(value)) => {
            let hint = if value == "FILE" { ValueHint::FilePath } else { ValueHint::Other };
            arg.value_name(value).value_hint(hint).value_parser(value_parser!(OsString))
        }
    }
}

/// The words from which the value of a flag is chosen; none if the value can be something else too.
pub fn words(flag: &str) -> Vec<&'static str> {
    Key::find(flag).map(|key| key.kind.words()).unwrap_or_default()
}
