//! `vram advise`: how much GPU memory each workload should request, judging by the history in a Prometheus server.
//!
//! Invariants: nothing is changed anywhere; the number of requests does not depend on the number of workloads; the requests
//! end within the timeout, whatever the server does; nothing that a terminal would interpret is printed.

mod arguments;
mod clients;
mod devices;
mod freed;
mod groups;
mod history;
mod output;
mod packing;
mod pod_names;
mod prometheus;
mod queries;
mod record;
mod reservation;
mod rising;
mod run_key;
mod span;
mod units;
mod workloads;

use std::collections::BTreeMap;

use clap::ArgMatches;
use text_and_sizes::sizing::boards;
use vram_exporter::subcommand::{Ending, print, say};

use self::arguments::Arguments;
pub(crate) use self::arguments::{NAME, PROGRAM, command};
use self::devices::Devices;
use self::freed::{Advised, Freed};
use self::history::History;
use self::prometheus::{Error, Prometheus};
use self::queries::Answers;
use self::record::{Action, Advice, VERSION};
use self::run_key::RunKey;
use self::span::Span;
use self::workloads::Enough;

/// The exit status when a workload could be given less, or needs more.
const CHANGE: u8 = 2;

/// Prints the advice. Returns the exit status.
pub(crate) fn main(matches: &ArgMatches) -> Result<u8, Ending> {
    let arguments = arguments::read(matches)?;
    let advice = advice(&arguments).map_err(Ending::failed)?;
    // A file of advice does not show them to the person who runs the command.
    for warning in &advice.warnings {
        say(PROGRAM, warning);
    }
    let is_change = |action| matches!(action, Action::Lower | Action::Raise);
    let status = if advice.workloads.iter().any(|workload| is_change(workload.action)) { CHANGE } else { 0 };
    let unwritten = |error| Ending::failed(format!("the advice cannot be written: {error}"));
    let text = output::text(&advice, arguments.format).map_err(unwritten)?;
    Ok(print(PROGRAM, &text, status))
}

/// Asks the server and judges its answers.
fn advice(arguments: &Arguments) -> Result<Advice, Error> {
    let span = Span::new(arguments.range, arguments.time);
    let mut prometheus = Prometheus::new(arguments)?;
    let asked = web_client::within(arguments.timeout, queries::ask(&mut prometheus, span));
    let asked = asked.map_err(|error| prometheus.unreachable(&error))?;
    let answers = asked.unwrap_or_else(|| Err(Error::Timeout(arguments.url.clone(), arguments.timeout.as_secs())))?;
    if answers.peaks.is_empty() {
        return Err(Error::Empty(arguments.url.clone()));
    }
    let mut warnings: Vec<_> = prometheus.warnings().map(|warning| format!("the server says: {warning}")).collect();
    let left_out = prometheus.left_out();
    if left_out > 0 {
        let what = "values of the server are no amounts (NaN, Inf, negative or above 2^53) and are left out";
        warnings.push(format!("{left_out} {what}"));
    }
    let (unusable, why) = history::unusable(&answers.peaks);
    let all = answers.peaks.len();
    if unusable == all {
        return Err(Error::Unusable(arguments.url.clone(), unusable, why));
    }
    if unusable > 0 {
        warnings.push(format!("{unusable} of {all} series of peaks cannot be used: {why}"));
    }
    Ok(judged(arguments, span, &answers, prometheus.requests, warnings))
}

fn judged(arguments: &Arguments, span: Span, answers: &Answers, queries: u64, mut warnings: Vec<String>) -> Advice {
    let devices = Devices::new(answers);
    let history = History::new(answers, span);
    let (groups, left_out) = groups::groups(&history, arguments.by);
    let enough = Enough { samples: arguments.min_samples, span: arguments.min_span };
    let mut workloads: Vec<_> =
        groups.iter().map(|(key, members)| workloads::judge(key, members, &devices, span, enough)).collect();

    // A run of several users has the highest advice of theirs.
    let mut advised: BTreeMap<&RunKey, Advised> = BTreeMap::new();
    for (members, workload) in groups.values().zip(&workloads) {
        for (key, _) in members {
            advised.entry(key).or_default().add(workload.advice_bytes, workload.action);
        }
    }
    let freed = Freed::new(&history, &devices, &advised);
    for (members, workload) in groups.values().zip(&mut workloads) {
        workload.freed_bytes = freed.of(members.iter().copied());
    }
    let freed = freed.of(history.runs.iter());
    let advice_of = |key: &RunKey| advised.get(key).and_then(|advised| advised.bytes);
    let (fleet, unplaced) = packing::fleet(&history, &devices, freed, advice_of);
    warnings.extend(notes(answers, &history, &devices, unplaced));
    Advice {
        version: VERSION,
        prometheus: arguments.url.to_string(),
        by: arguments.by.name(),
        time: span.end,
        range_seconds: span.seconds(),
        interval_seconds: span.interval,
        source: if answers.recorded { "recorded" } else { "raw" },
        min_samples: arguments.min_samples,
        min_span_seconds: arguments.min_span,
        queries,
        warnings,
        left_out,
        workloads,
        fleet,
    }
}

/// What limits the answer.
fn notes(answers: &Answers, history: &History, devices: &Devices, unplaced: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if answers.recorded {
        notes.push("there is no raw sample in this range; judged by the recorded peaks of each hour".to_owned());
    }
    if history.others > 0 {
        notes.push("an exporter summed workloads into \"other\" (process.series-limit); they are left out".to_owned());
    }
    if unplaced > 0 {
        notes.push(format!(
            "{unplaced} runs are on GPUs without gpu_info or gpu_memory_total_bytes; packing leaves them out"
        ));
    }
    let table = |name: &str, total, profile: &str| {
        boards::profiles(name, total).find(|(known, _)| *known == profile).map(|(_, allocatable)| allocatable)
    };
    for profile in devices.differing_profiles(table) {
        notes.push(format!(
            "MIG devices of the profile {profile} are smaller than this program's table says; their own size is used"
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
