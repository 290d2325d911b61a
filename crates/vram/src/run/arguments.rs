//! The command line of `run`: a few flags, then the command.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgMatches, value_parser};
use vram_exporter::config::Config;
use vram_exporter::subcommand::Ending;

use crate::format::Format;
use crate::{configuration, flag};

/// The name of the subcommand.
pub(crate) const NAME: &str = "run";
/// What its messages begin with.
pub(crate) const PROGRAM: &str = "vram run";
const DEFAULT_RATE: &str = "1000";

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

/// Reads the arguments.
pub(super) fn read(
    matches: &ArgMatches,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Arguments, Ending> {
    let rate = *matches.get_one::<u32>("rate").unwrap_or(&0);
    Ok(Arguments {
        period: Duration::from_secs(1) / rate.max(1),
        format: Format::given(matches),
        output: matches.get_one::<PathBuf>("output").cloned(),
        command: matches.get_many::<OsString>("command").into_iter().flatten().cloned().collect(),
        config: configuration::read(matches, env)?,
    })
}

/// The description of the command line of `run`.
pub(crate) fn command() -> clap::Command {
    clap::Command::new(NAME)
        .about("Runs a command and reports how much GPU memory its processes held: together, each, and on each GPU.")
        .override_usage("vram run [FLAGS] -- COMMAND [ARGUMENTS]")
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
        .arg(Format::flag("The format of the report."))
        .arg(
            flag("output", "FILE", "Write the report to this file instead of standard error.")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            flag(
                "memory.probes",
                "PROBES",
                "all: watch the driver's memory calls, for peaks that no reading shows. Needs rights. [default: none]",
            )
            .value_parser(value_parser!(OsString)),
        )
        .args(configuration::flags())
        .arg(
            Arg::new("command")
                .help("The command and its arguments.")
                .value_parser(value_parser!(OsString))
                .value_name("COMMAND")
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<const N: usize>(args: &[&str], env: [(OsString, OsString); N]) -> Result<Arguments, Ending> {
        let parsed = command().try_get_matches_from([NAME].iter().chain(args));
        read(&parsed.map_err(|error| Ending::of(PROGRAM, &error))?, env)
    }

    fn given(args: &[&str]) -> Result<Arguments, Ending> {
        with(args, [])
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
        let with = |args: &[&str]| with(args, env.clone()).unwrap().config;
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
