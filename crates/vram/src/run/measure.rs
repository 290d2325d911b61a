//! The course of a run: prepare, start the command, wait for its end, report.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use clap::ArgMatches;
use gpu_readings::attribution;
use gpu_readings::nvml::Library;
use nix::sys::signal::Signal;
use tokio::time::timeout;
use vram_exporter::demo::SimulatedMachine;
use vram_exporter::subcommand::{Ending, say};

use super::arguments::{self, Arguments, PROGRAM};
use super::child::{Child, Ended, NotStarted};
use super::facts::{Facts, Followed};
use super::names::Names;
use super::output::Output;
use super::readings::Readings;
use super::report::Report;
use super::reported::Reported;
use super::signals::{self, Signals};
use super::socket::Socket;
use super::text;
use crate::format::Format;

/// How often the descendants of a command that has ended are checked.
const LOOK: Duration = Duration::from_millis(5);
/// The longest wait for names at the end.
const NAMING: Duration = Duration::from_millis(500);

/// Runs the command and reports. `env` are those of [`std::env::vars_os`]. Returns the exit status.
pub(crate) fn main(matches: &ArgMatches, env: impl IntoIterator<Item = (OsString, OsString)>) -> Result<u8, Ending> {
    let arguments = arguments::read(matches, env)?;
    let wrong = |error| Ending::Wrong(format!("{error:#}"));
    let output = Output::open(arguments.output.as_deref()).map_err(wrong)?;
    let simulated = arguments.config.demo.as_deref().map(SimulatedMachine::prepare).transpose().map_err(wrong)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Ending::failed)?;
    runtime.block_on(run(arguments, output, simulated.as_ref()))
}

async fn run(mut arguments: Arguments, output: Output, simulated: Option<&SimulatedMachine>) -> Result<u8, Ending> {
    let library = match (simulated, arguments.config.nvml.library.clone()) {
        (Some(machine), _) => machine.library(),
        (None, Some(path)) => Library::At(path),
        (None, None) => Library::Search,
    };
    if let Some(machine) = simulated {
        arguments.config = machine.adapt(arguments.config);
    }
    let failed = |what: &str, error| Ending::failed(format!("{what}: {error}"));
    let mut signals = Signals::install().map_err(|error| failed("signals cannot be handled", error))?;
    let names = Names::start(&arguments.config);
    // The command does not wait for the driver, which may hang. A process can allocate only after it has opened the driver too.
    let readings = Readings::start(library, &arguments.config, arguments.period, names.clone());
    let readings = readings.map_err(|error| failed("no thread could be started", error))?;
    // Without the socket, everything else is measured all the same.
    let socket = Socket::open(names.clone()).await;
    let variables = socket.as_ref().map_or_else(|_| Vec::new(), Socket::variables);
    let (start, begun) = (Instant::now(), SystemTime::now());
    readings.begin(start);
    let child = match Child::start(&arguments.command, variables) {
        Ok(child) => child,
        Err(NotStarted { error, status }) => {
            // The lanes must not use the files of a simulated machine after they have been removed.
            readings.stop();
            let program = arguments.command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
            return Err(Ending::Failed(format!("{program:?} cannot be started: {error}"), status));
        }
    };
    let ended = command_end(&child, &mut signals).await;
    let duration = start.elapsed();
    let followed = follow(&child, &mut signals, &readings, arguments.config.nvml.call_timeout).await;
    let left = child.reap().remaining;
    let reported = match socket {
        Ok(socket) => socket.finish(left).await,
        Err(error) => Reported { problem: Some(format!("{error:#}")), ..Reported::default() },
    };
    let state = readings.finish().await;
    readings.stop();
    let owners = names.finish(NAMING);
    let sees_host = attribution::sees_host_processes(Path::new("/proc")).filter(|_| simulated.is_none());
    let command = arguments.command;
    let facts = Facts { command, begun, start, ended, duration, followed, left, sees_host, reported };
    let report = Report::of(&facts, &state, &owners);
    let written = match arguments.format {
        Format::Text => Ok(text::of(&report)),
        Format::Json => serde_json::to_string_pretty(&report).map(|json| json + "\n").map_err(anyhow::Error::from),
    };
    // The command has run, so its exit status matters more than a report that cannot be written.
    if let Err(error) = written.and_then(|report| output.write(&report)) {
        say(PROGRAM, &format!("{error:#}"));
    }
    Ok(ended.status())
}

/// Forwards signals until the command ends.
async fn command_end(child: &Child, signals: &mut Signals) -> Ended {
    loop {
        if let Some(ended) = child.reap().command {
            return ended;
        }
        let signal = signals.next().await;
        if signals::is_forwarded(signal) {
            child.signal(signal);
        }
        if signal == Signal::SIGTSTP {
            signals::stop();
        }
    }
}

/// Waits until none of the descendants that outlived the command holds GPU memory, or until a signal arrives that asks
/// this process to end. Returns `None` if no descendant held any GPU memory.
async fn follow(child: &Child, signals: &mut Signals, readings: &Readings, limit: Duration) -> Option<Followed> {
    let begin = Instant::now();
    let (mut processes, mut until) = (None, None);
    // Every descendant that is alive is a child of this process or a descendant of such a child, so none is left once
    // this process has no children.
    while until.is_none() && child.reap().remaining && readings.is_open() {
        let asked = Instant::now();
        let mut living = None;
        while living.is_none() && asked.elapsed() < limit {
            until = until.or(end_within(LOOK, signals).await);
            living = readings.living_since(asked);
        }
        // If no GPU answers, the number of living processes stays unknown.
        if living.is_none_or(|living| living == 0) {
            break;
        }
        processes = processes.or(living);
    }
    processes.map(|processes| Followed { time: begin.elapsed(), processes, until })
}

/// Waits until a signal arrives or the time has passed. Returns the signal if it asks this process to end.
async fn end_within(time: Duration, signals: &mut Signals) -> Option<Signal> {
    timeout(time, signals.next()).await.ok().filter(|signal| signals::asks_to_end(*signal))
}
