//! The configuration of the exporter, as far as the tool uses it: the keys about the driver and the host have flags, and
//! all keys are read from the environment and from the file of the exporter.

use std::ffi::OsString;

use clap::{Arg, ArgMatches, value_parser};
use vram_exporter::config::{self, Config};
use vram_exporter::subcommand::Ending;

use crate::flag;

/// The keys that have a flag of the same name.
const KEYS: [(&str, &str, &str); 4] = [
    ("nvml.library", "PATH", "The NVML library to open. [default: searched for in the usual places]"),
    ("nvml.call-timeout", "DURATION", "How long to wait for a driver call that does not return. [default: 2s]"),
    ("path.procfs", "PATH", "The /proc in which processes are looked up. [default: /proc]"),
    ("path.passwd", "PATH", "A file like /etc/passwd that names the users of processes."),
];
/// The flags of `run` alone that are keys of the exporter.
const OF_RUN: [&str; 1] = ["memory.probes"];
/// The flags that are not keys of the exporter.
const OTHERS: [&str; 2] = ["config.file", "demo"];

/// The flags.
pub(crate) fn flags() -> impl Iterator<Item = Arg> {
    let flag = |name, value, help| flag(name, value, help).value_parser(value_parser!(OsString));
    let demo = flag("demo", "SCENARIO", "Use simulated GPUs: vram-exporter scenarios lists them.");
    let file = flag("config.file", "FILE", "The configuration file of the exporter. [env: VRAM_EXPORTER_CONFIG_FILE]");
    let others = [demo.num_args(0..=1).require_equals(true).default_missing_value("demo"), file];
    others.into_iter().chain(KEYS.map(|(name, value, help)| flag(name, value, help)))
}

/// Reads the configuration from the flags, the environment and the file.
///
/// # Errors
/// All problems of all three together.
pub(crate) fn read(
    matches: &ArgMatches,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Config, Ending> {
    let mut args = vec![OsString::from("vram-exporter")];
    for name in KEYS.map(|(name, ..)| name).into_iter().chain(OF_RUN).chain(OTHERS) {
        let mut flag = OsString::from(format!("--{name}="));
        // Not every subcommand has all of them.
        if let Ok(Some(value)) = matches.try_get_one::<OsString>(name) {
            flag.push(value);
            args.push(flag);
        }
    }
    match config::load(args, env) {
        Ok(config::Command::Run(config)) => Ok(config),
        Ok(_) => Err(Ending::Wrong("no such action".to_owned())),
        Err(error) => Err(Ending::Wrong(error.to_string())),
    }
}
