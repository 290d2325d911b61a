//! The command line of `report`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, value_parser};
use text_and_sizes::text::untrusted;
use vram_exporter::subcommand::{Ending, MESSAGE};
use web_client::server_url::ServerUrl;

use crate::format::Format;
use crate::{flag, http_config};

/// The name of the subcommand.
pub(crate) const NAME: &str = "report";
/// What its messages begin with.
pub(crate) const PROGRAM: &str = "vram report";
const DEFAULT_URL: &str = "http://localhost:9836";
const DEFAULT_TIMEOUT: &str = "10";

/// What to ask, and whom.
#[derive(Debug, PartialEq)]
pub(super) struct Arguments {
    pub(super) job: Option<String>,
    pub(super) workload: Option<String>,
    /// The exporter's URL, `http://` or `https://`, without a user.
    pub(super) url: ServerUrl,
    pub(super) format: Format,
    pub(super) timeout: Duration,
    pub(super) http_config: Option<PathBuf>,
    /// The price of a kWh, in any currency.
    pub(super) price: Option<f64>,
}

impl Arguments {
    /// `job 77`, for messages.
    pub(super) fn subject(&self) -> String {
        let named = [("job", &self.job), ("workload", &self.workload)];
        let named =
            named.iter().filter_map(|(what, name)| Some(format!("{what} {}", untrusted(name.as_deref()?, MESSAGE))));
        named.collect::<Vec<_>>().join(" in ")
    }
}

/// Reads the arguments.
pub(super) fn read(matches: &ArgMatches) -> Result<Arguments, Ending> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let (job, workload) = (text("job"), text("workload"));
    if [&job, &workload].into_iter().flatten().any(String::is_empty) {
        return Err(Ending::wrong(PROGRAM, "the job or workload is empty"));
    }
    Ok(Arguments {
        job,
        workload,
        url: ServerUrl::parse(&text("url").unwrap_or_default(), DEFAULT_URL, "--http-config")
            .map_err(|why| Ending::Wrong(format!("--url: {why}")))?,
        format: Format::given(matches),
        timeout: Duration::from_secs(u64::from(*matches.get_one::<u16>("timeout").unwrap_or(&1))),
        http_config: matches.get_one::<PathBuf>("http-config").cloned(),
        price: matches.get_one("price-per-kwh").copied(),
    })
}

/// The description of the command line of `report`.
pub(crate) fn command() -> clap::Command {
    clap::Command::new(NAME)
        .about("Prints what an exporter reports about a job or another workload: its memory on each GPU, and advice.")
        .override_usage("vram report --job=ID | --workload=NAME [FLAGS]")
        .after_help(
            "The exit status is 0 if a report is printed, 2 if the exporter has none, 1 if the exporter cannot be asked, and \
             64 if the arguments are wrong. See docs/sizing.md.",
        )
        .max_term_width(100)
        .arg(
            flag("job", "ID", "Print the reports about this job of Slurm or of another scheduler.")
                .required_unless_present("workload"),
        )
        .arg(flag("workload", "NAME", "Print the reports about this workload, such as namespace/pod/container."))
        .arg(flag("url", "URL", "The exporter.").default_value(DEFAULT_URL))
        .arg(Format::flag("Print text, or one JSON object on each line."))
        .arg(
            flag("timeout", "SECONDS", "How long the answer may take in all, 1 to 600.")
                .default_value(DEFAULT_TIMEOUT)
                .value_parser(value_parser!(u16).range(1..=600)),
        )
        .arg(
            flag("price-per-kwh", "PRICE", "Print what the energy costs, if the exporter apportions it (telemetry.workload-energy).")
                .value_parser(price),
        )
        .arg(http_config())
}

/// A price in any currency.
fn price(text: &str) -> Result<f64, &'static str> {
    let given = text.parse().ok().filter(|price: &f64| price.is_finite() && *price > 0.0);
    given.ok_or("must be a number above 0, such as 0.30")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(args: &[&str]) -> Result<Arguments, Ending> {
        let parsed = command().try_get_matches_from([NAME].iter().chain(args));
        read(&parsed.map_err(|error| Ending::of(PROGRAM, &error))?)
    }

    fn wrong(args: &[&str]) -> String {
        match given(args) {
            Err(Ending::Wrong(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_job_and_a_workload_are_asked_of_the_local_exporter() {
        let arguments = given(&["--job=77"]).unwrap();
        assert_eq!((arguments.job.as_deref(), arguments.workload.as_deref()), (Some("77"), None));
        assert_eq!((arguments.url.to_string(), arguments.format), (format!("{DEFAULT_URL}/"), Format::Text));
        assert_eq!(arguments.timeout, Duration::from_secs(10));
        let all = ["--workload=ml/a/b", "--url=https://n:1/p", "--format", "json", "--timeout=3", "--http-config=/a"];
        let arguments = given(&all).unwrap();
        assert_eq!((arguments.subject(), arguments.format), ("workload ml/a/b".to_owned(), Format::Json));
        assert_eq!((arguments.timeout, arguments.http_config), (Duration::from_secs(3), Some("/a".into())));
        assert_eq!((arguments.price, given(&["--job=1", "--price-per-kwh=0.3"]).unwrap().price), (None, Some(0.3)));
    }

    #[test]
    fn wrong_arguments_are_refused_in_one_line() {
        for (args, says) in [
            (&[][..], "--job"),
            (&["--job="], "empty"),
            (&["--job=1", "--format=xml"], "text, json"),
            (&["--job=1", "--timeout=0"], "1..=600"),
            (&["--job=1", "--price-per-kwh=0"], "above 0"),
            (&["--job=1", "--price-per-kwh=inf"], "above 0"),
            (&["--job=1", "--price-per-kwh=0,30"], "above 0"),
            (&["--job=1", "--url=ftp://a"], "http:// or https://"),
            (&["--job=1", "--url=/metrics"], "http:// or https://"),
            (&["--job=1", "--url=http://a b"], "must have the name or the address of a host"),
            (&["--job=1", "--url=http://me:secret@a"], "--http-config"),
            (&["--job=1", "--url=http://a/?x"], "query"),
            (&["--jobs\n\u{1b}=1"], "--help"),
        ] {
            let why = wrong(args);
            assert!(why.contains(says) && !why.contains('\n') && !why.contains('\u{1b}'), "{args:?}: {why}");
            assert!(!why.contains("secret"), "{why}");
        }
        assert!(matches!(given(&["--help"]), Err(Ending::Help(text)) if text.contains("--workload")));
    }
}
