//! The command line of `advise`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{ArgMatches, value_parser};
use vram_exporter::subcommand::Ending;
use web_client::server_url::ServerUrl;

use super::span::Span;
use crate::{flag, http_config};

/// The name of the subcommand.
pub(crate) const NAME: &str = "advise";
/// What its messages begin with.
pub(crate) const PROGRAM: &str = "vram advise";
const EXAMPLE: &str = "http://prometheus:9090";
/// The longest range, in seconds: 5 years of 365 days.
const LONGEST: u64 = 5 * 365 * 86_400;
/// The shortest range, in seconds.
const SHORTEST: u64 = 60;
/// The first second of the year 10000, since the Unix epoch. RFC 3339 has no later year.
const YEAR_10000: u64 = 253_402_300_800;

/// What the workloads are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The workload, without the generated parts of pods' names.
    Workload,
    /// Each container of each pod.
    Pod,
    /// Batch jobs.
    Job,
    /// The users of the processes.
    User,
}

impl By {
    const ALL: [Self; 4] = [Self::Workload, Self::Pod, Self::Job, Self::User];

    /// As in the flag and in the output.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Workload => "workload",
            Self::Pod => "pod",
            Self::Job => "job",
            Self::User => "user",
        }
    }
}

/// How the advice is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    Json,
    Yaml,
    Csv,
}

impl Format {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Table, "table"), (Self::Json, "json"), (Self::Yaml, "yaml"), (Self::Csv, "csv")];
}

/// What to ask, and what is enough for advice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    /// The server's URL, `http://` or `https://`, without a user and a query.
    pub(super) url: ServerUrl,
    /// Seconds, 60 to 5 years.
    pub(super) range: u64,
    /// The end of the range, in seconds since the Unix epoch.
    pub(super) time: u64,
    pub(super) by: By,
    pub(super) format: Format,
    pub(super) min_samples: u64,
    /// Seconds.
    pub(super) min_span: u64,
    pub(super) http_config: Option<PathBuf>,
    /// For all requests together.
    pub(super) timeout: Duration,
}

/// Reads the arguments.
pub(super) fn read(matches: &ArgMatches) -> Result<Arguments, Ending> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let wrong = |flag: &str, why: &str| Ending::Wrong(format!("--{flag}: {why}"));
    let url = ServerUrl::parse(&text("prometheus.url"), EXAMPLE, "--http-config");
    let by = By::ALL.into_iter().find(|by| by.name() == text("by")).unwrap_or(By::Workload);
    let format = Format::ALL.into_iter().find(|(_, name)| *name == text("format"));
    let time = match matches.get_one::<String>("time") {
        None => now(),
        Some(text) => {
            moment(text).ok_or_else(|| wrong("time", "must be seconds since 1970 or like 2026-01-31T12:00:00Z"))?
        }
    };
    let range = seconds(&text("range")).filter(|range| (SHORTEST..=LONGEST).contains(range));
    let range = range.ok_or_else(|| wrong("range", "must be a duration from 1m to 5y, such as 14d"))?;
    // The range is rounded up by less than two intervals, and the interval before it is read, too.
    if time < range + 3 * Span::interval_of(range) {
        return Err(wrong("time", "the range would begin before 1970"));
    }
    Ok(Arguments {
        url: url.map_err(|why| wrong("prometheus.url", &why))?,
        range,
        time,
        by,
        format: format.map_or(Format::Table, |(format, _)| format),
        min_samples: *matches.get_one::<u64>("min-samples").unwrap_or(&0),
        min_span: seconds(&text("min-span")).ok_or_else(|| wrong("min-span", "must be a duration such as 3h"))?,
        http_config: matches.get_one::<PathBuf>("http-config").cloned(),
        timeout: seconds(&text("timeout"))
            .filter(|seconds| (1..=3600).contains(seconds))
            .map(Duration::from_secs)
            .ok_or_else(|| wrong("timeout", "must be a duration from 1s to 1h"))?,
    })
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A moment in whole seconds since the Unix epoch.
fn moment(text: &str) -> Option<u64> {
    let written =
        || humantime::parse_rfc3339_weak(text).ok()?.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs());
    text.parse().ok().or_else(written).filter(|time| *time < YEAR_10000)
}

/// A duration in whole seconds; `None` if it is not one.
fn seconds(text: &str) -> Option<u64> {
    let duration = humantime::parse_duration(text).ok()?;
    (duration.subsec_nanos() == 0).then_some(duration.as_secs())
}

/// The description of the command line of `advise`.
pub(crate) fn command() -> clap::Command {
    clap::Command::new(NAME)
        .about("Advises how much GPU memory each workload should request, judging by the history in a Prometheus server.")
        .override_usage("vram advise --prometheus.url=URL [FLAGS]")
        .after_help(
            "The exit status is 0 if nothing should change, 2 if a workload could be given less or needs more, 1 if the server \
             cannot be asked or has no sample, and 64 if the arguments are wrong. Nothing is changed. See docs/sizing.md.",
        )
        .max_term_width(100)
        .arg(flag("prometheus.url", "URL", "The Prometheus server, or another one with its API.").required(true))
        .arg(flag("range", "DURATION", "How far back the history is read.").default_value("14d"))
        .arg(flag("time", "TIME", "The end of the range, in seconds since 1970 or like 2026-01-31T12:00:00Z. Default: now."))
        .arg(
            flag("by", "GROUP", "Advise for each workload, each container of a pod, each batch job, or each user.")
                .default_value("workload")
                .value_parser(By::ALL.map(By::name)),
        )
        .arg(
            flag("format", "FORMAT", "How the advice is printed.")
                .default_value("table")
                .value_parser(Format::ALL.map(|(_, name)| name)),
        )
        .arg(
            flag("min-samples", "NUMBER", "With fewer samples there is no advice.")
                .default_value("100")
                .value_parser(value_parser!(u64)),
        )
        .arg(flag("min-span", "DURATION", "With a shorter history there is no advice.").default_value("3h"))
        .arg(http_config())
        .arg(flag("timeout", "DURATION", "How long all requests may take together, 1s to 1h.").default_value("2m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(args: &[&str]) -> Result<Arguments, Ending> {
        let parsed = command().try_get_matches_from([NAME].iter().chain(args));
        read(&parsed.map_err(|error| Ending::of(PROGRAM, &error))?)
    }

    #[test]
    fn the_defaults_are_two_weeks_until_now() {
        let arguments = given(&["--prometheus.url=http://p:9090"]).unwrap();
        assert_eq!((arguments.range, arguments.by, arguments.format), (14 * 86_400, By::Workload, Format::Table));
        assert_eq!((arguments.min_samples, arguments.min_span), (100, 3 * 3600));
        assert_eq!(arguments.timeout, Duration::from_secs(120));
        assert!(arguments.time > 1_700_000_000);
    }

    #[test]
    fn every_flag_is_read() {
        let all = [
            "--prometheus.url=https://p/prefix",
            "--range=36h",
            "--time=2026-01-31T12:00:00Z",
            "--by=user",
            "--format=csv",
            "--min-samples=0",
            "--min-span=10m",
            "--http-config=/etc/c.yml",
            "--timeout=5s",
        ];
        let expected = Arguments {
            url: ServerUrl::parse("https://p/prefix", "", "").unwrap(),
            range: 36 * 3600,
            time: 1_769_860_800,
            by: By::User,
            format: Format::Csv,
            min_samples: 0,
            min_span: 600,
            http_config: Some("/etc/c.yml".into()),
            timeout: Duration::from_secs(5),
        };
        assert_eq!(given(&all).unwrap(), expected);
        assert_eq!(given(&[all[0], "--time=1769860800"]).unwrap().time, expected.time);
        for time in ["253402300799", "9999-12-31T23:59:59Z"] {
            assert_eq!(given(&[all[0], &format!("--time={time}")]).unwrap().time, YEAR_10000 - 1);
        }
        assert_eq!(given(&[all[0], "--time=80883", "--range=1345m"]).unwrap().time, 80_883);
    }

    #[test]
    fn wrong_arguments_are_refused_in_one_line() {
        let url = "--prometheus.url=http://p:9090";
        for (args, says) in [
            (&[][..], "--prometheus.url"),
            (&["--prometheus.url=p:9090"], "--prometheus.url"),
            (&["--prometheus.url=http://me:secret@p"], "--http-config"),
            (&["--prometheus.url=http://p/?x=1"], "query"),
            (&[url, "--range=0s"], "--range"),
            (&[url, "--range=6y"], "5y"),
            (&[url, "--range=1m30"], "--range"),
            (&[url, "--time=tomorrow"], "--time"),
            (&[url, "--time=3600"], "1970"),
            (&[url, "--time=253402300800"], "--time"),
            (&[url, "--time=300000000000"], "--time"),
            (&[url, "--time=80700", "--range=1345m"], "1970"),
            (&[url, "--time=80882", "--range=1345m"], "1970"),
            (&[url, "--by=team"], "user"),
            (&[url, "--format=xml"], "yaml"),
            (&[url, "--min-samples=-1"], "--min-samples"),
            (&[url, "--min-span=few"], "--min-span"),
            (&[url, "--timeout=2h"], "--timeout"),
            (&[url, "--rang\n\u{1b}=1"], "--help"),
        ] {
            let Err(Ending::Wrong(why)) = given(args) else { panic!("{args:?}") };
            assert!(why.contains(says) && !why.contains('\n') && !why.contains('\u{1b}'), "{args:?}: {why}");
            assert!(!why.contains("secret"), "{why}");
        }
        assert!(matches!(given(&["--help"]), Err(Ending::Help(text)) if text.contains("--min-span")));
    }
}
