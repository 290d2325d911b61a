//! The command line of `run`: a few flags, then the command. The exporter's keys that concern the driver are read by
//! [`crate::config`] from flags, environment variables and the file, as usual.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, value_parser};

use crate::config::{self, Config};
use crate::subcommand::Ending;

/// The name of the subcommand.
pub(crate) const NAME: &str = "run";
const DEFAULT_RATE: &str = "1000";
/// The exporter's keys that `run` uses too. Each is a flag of `run` with the same name.
const KEYS: [(&str, &str, &str); 4] = [
    ("nvml.library", "PATH", "The NVML library to open. [default: searched for in the usual places]"),
    (
        "nvml.call-timeout",
        "DURATION",
        "How long the report waits for a driver call that does not return. [default: 2s]",
    ),
    ("path.procfs", "PATH", "The /proc in which processes other than the command's are looked up. [default: /proc]"),
    ("path.passwd", "PATH", "A file like /etc/passwd that names the users of processes other than the command's."),
];

/// How the report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// What to run and how to report it.
#[derive(Debug)]
pub(super) struct Arguments {
    /// Time between two samples.
    pub(super) period: Duration,
    pub(super) format: Format,
    /// The file for the report; `None` writes it to standard error.
    pub(super) output: Option<PathBuf>,
    /// The program and its arguments; never empty.
    pub(super) command: Vec<OsString>,
    pub(super) config: Config,
}

/// Reads the arguments from the name of the subcommand on.
pub(super) fn read(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Arguments, Ending> {
    let matches = command().try_get_matches_from(args).map_err(|error| match error.kind() {
        ErrorKind::MissingRequiredArgument => Ending::wrong(NAME, "no command is given"),
        _ => Ending::of(NAME, &error),
    })?;
    let rate = *matches.get_one::<u32>("rate").unwrap_or(&0);
    let format = match matches.get_one::<String>("format").map(String::as_str) {
        Some("json") => Format::Json,
        _ => Format::Text,
    };
    Ok(Arguments {
        period: Duration::from_secs(1) / rate.max(1),
        format,
        output: matches.get_one::<PathBuf>("output").cloned(),
        command: matches.get_many::<OsString>("command").into_iter().flatten().cloned().collect(),
        config: configuration(&matches, env)?,
    })
}

/// The exporter's configuration: its file, its environment, and the flags that `run` shares with it.
fn configuration(matches: &ArgMatches, env: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Config, Ending> {
    let mut args = vec![OsString::from("vram-exporter")];
    for name in KEYS.map(|(name, ..)| name).into_iter().chain(["config.file", "demo"]) {
        let mut flag = OsString::from(format!("--{name}="));
        if let Some(value) = matches.get_one::<OsString>(name) {
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

/// The description of the command line of `run`.
pub(crate) fn command() -> clap::Command {
    let flag = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let os = |arg: Arg| arg.value_parser(value_parser!(OsString));
    clap::Command::new("vram-exporter run")
        .bin_name("vram-exporter run")
        .about("Runs a command and reports how much GPU memory its processes held: together, each, and on each GPU.")
        .override_usage("vram-exporter run [FLAGS] -- COMMAND [ARGUMENTS]")
        .after_help(
            "The exit status is the command's, or 128 plus the number of the signal that ended it; 127 if the command \
             is not found, 126 if it cannot be executed, 64 if the arguments are wrong. See docs/run.md.",
        )
        .max_term_width(100)
        .arg(
            flag("rate", "HZ", "Memory samples per second, 1 to 1000.")
                .default_value(DEFAULT_RATE)
                .value_parser(value_parser!(u32).range(1..=1000)),
        )
        .arg(flag("format", "FORMAT", "The format of the report.").default_value("text").value_parser(["text", "json"]))
        .arg(
            flag("output", "FILE", "Write the report to this file instead of standard error.")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            os(flag("demo", "SCENARIO", "Measure on simulated GPUs: see vram-exporter --help."))
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("demo"),
        )
        .args(KEYS.map(|(name, value, help)| os(flag(name, value, help))))
        .arg(os(flag(
            "config.file",
            "FILE",
            "The configuration file of the exporter. [env: VRAM_EXPORTER_CONFIG_FILE]",
        )))
        .arg(
            os(Arg::new("command").help("The command and its arguments."))
                .value_name("COMMAND")
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(args: &[&str]) -> Result<Arguments, Ending> {
        read(["run"].iter().chain(args).map(OsString::from), [])
    }

    fn wrong(args: &[&str]) -> String {
        match given(args) {
            Err(Ending::Wrong(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_end_where_the_command_begins() {
        let arguments = given(&["--rate=100", "--format", "json", "--", "train", "--format=x", "--", "-v"]).unwrap();
        assert_eq!(arguments.command, ["train", "--format=x", "--", "-v"]);
        assert_eq!((arguments.period, arguments.format), (Duration::from_millis(10), Format::Json));
        let bare = given(&["train", "--rate=7"]).unwrap();
        assert_eq!(bare.command, ["train", "--rate=7"]);
        assert_eq!((bare.period, bare.format, bare.output), (Duration::from_millis(1), Format::Text, None));
    }

    #[test]
    fn the_exporter_s_keys_are_read_like_the_exporter_s() {
        let env = [("VRAM_EXPORTER_NVML_LIBRARY".into(), "/a".into())];
        let with = |args: &[&str]| read(["run"].iter().chain(args).map(OsString::from), env.clone()).unwrap().config;
        assert_eq!(with(&["true"]).nvml.library, Some("/a".into()));
        assert_eq!(with(&["--nvml.library=/b", "true"]).nvml.library, Some("/b".into()));
        assert_eq!(with(&["--nvml.call-timeout=3s", "true"]).nvml.call_timeout, Duration::from_secs(3));
        assert_eq!(given(&["--demo", "true"]).unwrap().config.demo.as_deref(), Some("demo"));
        assert_eq!(given(&["--demo=mixed", "true"]).unwrap().config.demo.as_deref(), Some("mixed"));
        assert!(wrong(&["--demo", "--nvml.library=/b", "true"]).contains("has no effect with --demo"));
    }

    #[test]
    fn wrong_arguments_are_refused_in_one_line() {
        for args in
            [&[][..], &["--rate=0", "true"], &["--rate=1001", "true"], &["--format=xml", "true"], &["--no\n", "x"]]
        {
            let why = wrong(args);
            assert!(!why.contains('\n') && why.contains("--help"), "{why}");
        }
        assert!(wrong(&["--nvml.call-timeout=soon", "true"]).contains("nvml.call-timeout"));
        assert!(matches!(given(&["--help"]), Err(Ending::Help(text)) if text.contains("--rate")));
    }
}
