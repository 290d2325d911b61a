//! The command line of `leaks`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, ArgMatches, value_parser};
use vram_exporter::subcommand::Ending;

use crate::flag;
use crate::format::Format;

/// The name of the subcommand.
pub(crate) const NAME: &str = "leaks";
/// What its messages begin with.
pub(crate) const PROGRAM: &str = "vram leaks";
/// Where the clients of a job find the exporter.
const SOCKETS: &str = "VRAM_EXPORTER_SOCKET";
/// The exporter's socket if the variable is not set.
const DEFAULT_SOCKET: &str = "/run/vram-exporter/allocator.sock";

/// What to ask, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    /// The process, in the exporter's pid namespace.
    pub(super) pid: u32,
    pub(super) socket: PathBuf,
    /// The time from the first look to the last one.
    pub(super) time: Duration,
    pub(super) looks: u64,
    pub(super) format: Format,
}

/// Reads the arguments.
pub(super) fn read(matches: &ArgMatches) -> Result<Arguments, Ending> {
    let number = |name: &str| matches.get_one::<u64>(name).copied().unwrap_or_default();
    let pid = matches.get_one::<u32>("pid").copied().unwrap_or_default();
    let socket = matches.get_one::<PathBuf>("socket").cloned();
    let inherited = std::env::var_os(SOCKETS);
    let inherited = inherited.as_deref().and_then(|list| std::env::split_paths(list).find(|path| is_named(path)));
    if socket.as_deref().is_some_and(|path| !is_named(path)) {
        return Err(Ending::wrong(PROGRAM, "--socket: the path is empty"));
    }
    Ok(Arguments {
        pid,
        socket: socket.or(inherited).unwrap_or_else(|| DEFAULT_SOCKET.into()),
        time: Duration::from_secs(number("seconds")),
        looks: number("looks"),
        format: Format::given(matches),
    })
}

fn is_named(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}

/// The description of the command line of `leaks`.
pub(crate) fn command() -> clap::Command {
    clap::Command::new(NAME)
        .about("Asks a process which lines of its program hold more GPU memory at each of several looks.")
        .after_help(
            "The process must report its call sites to an exporter with allocator.sites, as `vram-run --sites` makes it do. \
             The exit status is 0 whether or not something grew, 1 if the process cannot be asked, and 64 if the arguments are \
             wrong. See docs/allocators.md.",
        )
        .max_term_width(100)
        .arg(
            Arg::new("pid")
                .help("The process, with its pid as the exporter sees it.")
                .value_name("PID")
                .required(true)
                .value_parser(value_parser!(u32).range(1..)),
        )
        .arg(
            flag(
                "socket",
                "PATH",
                "The exporter's allocator.socket. [default: the first path in $VRAM_EXPORTER_SOCKET, or \
                 /run/vram-exporter/allocator.sock]",
            )
            .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            flag("seconds", "SECONDS", "The time from the first look to the last one, 1 to 600.")
                .default_value("20")
                .value_parser(value_parser!(u64).range(1..=600)),
        )
        .arg(
            flag("looks", "NUMBER", "The number of looks, 3 to 20.")
                .default_value("5")
                .value_parser(value_parser!(u64).range(3..=20)),
        )
        .arg(Format::flag("Print text or JSON."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(args: &[&str]) -> Result<Arguments, Ending> {
        let parsed = command().try_get_matches_from([NAME].iter().chain(args));
        read(&parsed.map_err(|error| Ending::of(PROGRAM, &error))?)
    }

    #[test]
    fn a_process_is_asked_for_twenty_seconds() {
        let arguments = given(&["77", "--socket=/a/b"]).unwrap();
        let time = Duration::from_secs(20);
        let format = Format::Text;
        assert_eq!(arguments, Arguments { pid: 77, socket: "/a/b".into(), time, looks: 5, format });
        let arguments = given(&["--seconds=600", "--looks", "20", "--format=json", "1"]).unwrap();
        assert_eq!((arguments.time, arguments.looks), (Duration::from_secs(600), 20));
        assert_eq!((arguments.pid, arguments.format), (1, Format::Json));
    }

    #[test]
    fn wrong_arguments_are_refused_in_one_line() {
        for (args, says) in [
            (&[][..], "PID"),
            (&["0"], "PID"),
            (&["train"], "PID"),
            (&["4294967296"], "PID"),
            (&["7", "8"], "8"),
            (&["7", "--seconds=0"], "1..=600"),
            (&["7", "--seconds=601"], "1..=600"),
            (&["7", "--looks=2"], "3..=20"),
            (&["7", "--looks=21"], "3..=20"),
            (&["7", "--format=xml"], "text, json"),
            (&["7", "--socket="], "--socket"),
        ] {
            let Err(Ending::Wrong(why)) = given(args) else { panic!("{args:?}") };
            assert!(why.contains(says) && !why.contains('\n'), "{args:?}: {why}");
        }
    }
}
