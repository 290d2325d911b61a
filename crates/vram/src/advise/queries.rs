//! What is asked of Prometheus: a fixed number of requests, however many workloads there are.
//!
//! Invariants: at most 42 requests: two for the peaks of the range, 3 × ([`PARTS`] + 1) for the peaks, the numbers of samples and
//! the failed allocations of the intervals, and 13 for the other values; a range query asks for multiples of its step, and a value at
//! another time is an error; a maximum is taken by the server over every sample of the range, so it is exact;
//! labels other than those of the GPU and the workload are aggregated away, so that a replica or another name of the node
//! changes nothing.

use super::prometheus::{Error, Prometheus, Series};
use super::span::Span;

/// The number of requests for all intervals of one value. An answer contains one part of the intervals.
const PARTS: u64 = 8;
/// What identifies a run: a workload on a device.
const RUN: &str = "cluster, workload, kind, uuid, mig_uuid";
/// What identifies a process on a device.
const PROCESS: &str = "cluster, uuid, mig_uuid, pid, process";

const RAW: &str = "gpu_workload_memory_window_peak_bytes";
const RECORDED: &str = "device:gpu_workload_memory_window_peak_bytes:max1h";

/// Everything that the server answered.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Whether the recorded series was read, because the range has no raw sample.
    pub(super) recorded: bool,
    /// By run: the highest window peak in bytes.
    pub(super) peaks: Vec<Series>,
    /// By run: the highest window peak of each interval in which it is above 0.
    pub(super) interval_peaks: Vec<Series>,
    /// By run: the number of samples in each interval.
    pub(super) interval_samples: Vec<Series>,
    /// By run: the highest number of processes at the same time.
    pub(super) processes: Vec<Series>,
    /// By run: the number of processes at the end of the range.
    pub(super) processes_now: Vec<Series>,
    /// By run and `source`: the budget in bytes, as last seen.
    pub(super) budgets: Vec<Series>,
    /// By process and the labels of its run and `user`.
    pub(super) owners: Vec<Series>,
    /// By process and `framework`: the highest allocated memory in bytes.
    pub(super) allocated: Vec<Series>,
    /// By process: the highest memory outside its allocators in bytes. Empty without clients.
    pub(super) outside: Vec<Series>,
    /// By process: the highest window peak in bytes, on devices with clients.
    pub(super) process_peaks: Vec<Series>,
    /// By process and `framework`: the counter of failed allocations in each interval, and in the one before the range. Empty
    /// without clients.
    pub(super) out_of_memory: Vec<Series>,
    /// By run: when it was last short of memory in the range, in Unix seconds.
    pub(super) shortages: Vec<Series>,
    /// By `cluster` and `uuid`: bytes.
    pub(super) gpu_total: Vec<Series>,
    /// By `cluster` and `uuid`: bytes.
    pub(super) gpu_reserved: Vec<Series>,
    /// By `cluster`, `uuid` and `mig_uuid`, with `profile`: bytes.
    pub(super) mig_total: Vec<Series>,
    /// By `cluster`, `uuid` and `mig_uuid`: bytes.
    pub(super) mig_reserved: Vec<Series>,
    /// By `cluster` and `uuid`, with `name` and `simulated`.
    pub(super) gpu_info: Vec<Series>,
}

/// Asks for everything, one request after the other.
pub(super) async fn ask(prometheus: &mut Prometheus, span: Span) -> Result<Answers, Error> {
    let end = span.end;
    let range = milliseconds(span.seconds());
    let highest = |by: &str, selector: &str| format!("max by ({by}) (max_over_time({selector}[{range}]))");

    // An exporter shows an ended workload with a peak of 0 for some minutes.
    let held = |metric: &str| format!("{} > 0", highest(RUN, metric));

    let mut answers = Answers { peaks: prometheus.query(&held(RAW), end).await?, ..Answers::default() };
    let mut peak = RAW;
    if answers.peaks.is_empty() {
        peak = RECORDED;
        answers.peaks = prometheus.query(&held(RECORDED), end).await?;
        answers.recorded = !answers.peaks.is_empty();
    }
    if answers.peaks.is_empty() {
        return Ok(answers);
    }
    let of_intervals =
        |function: &'static str| move |length: &str| format!("max by ({RUN}) ({function}({peak}[{length}]))");
    answers.interval_peaks = parts(prometheus, span, of_intervals("max_over_time")).await?;
    answers.interval_samples = parts(prometheus, span, of_intervals("count_over_time")).await?;
    answers.processes = prometheus.query(&highest(RUN, "gpu_workload_processes"), end).await?;
    answers.processes_now = prometheus.query(&format!("max by ({RUN}) (gpu_workload_processes)"), end).await?;
    // After the limits changed, those of now count, and not those of an earlier name of the node. A workload that runs without a
    // limit has none, although it had one before.
    let limit = "gpu_workload_memory_limit_bytes{source!=\"time_slicing\"}";
    let budgets = format!(
        "max by ({RUN}, source) ({limit}) or on ({RUN}) (max by ({RUN}, source) (last_over_time({limit}[{range}])) \
         unless on ({RUN}) max by ({RUN}) (gpu_workload_processes) > 0)"
    );
    answers.budgets = prometheus.query(&budgets, end).await?;
    let owners = format!("group by ({PROCESS}, workload, kind, user) (present_over_time(gpu_process_info[{range}]))");
    answers.owners = prometheus.query(&owners, end).await?;

    let shortages = highest(RUN, "gpu_workload_memory_last_shortage_timestamp_seconds");
    answers.shortages = prometheus.query(&format!("floor({shortages}) > {}", span.begin), end).await?;

    let allocated = "gpu_process_allocator_window_peak_bytes{pid!=\"\"}";
    answers.allocated = prometheus.query(&highest(&format!("{PROCESS}, framework"), allocated), end).await?;
    if !answers.allocated.is_empty() {
        let outside = "gpu_process_memory_outside_allocator_bytes{pid!=\"\"}";
        answers.outside = prometheus.query(&highest(PROCESS, outside), end).await?;
        let process_peaks = format!(
            "{} and on (cluster, uuid, mig_uuid) group by (cluster, uuid, mig_uuid) (present_over_time({allocated}[{range}]))",
            highest(PROCESS, "gpu_process_memory_window_peak_bytes{pid!=\"\"}")
        );
        answers.process_peaks = prometheus.query(&process_peaks, end).await?;
        let failed = "gpu_process_allocator_out_of_memory_total{pid!=\"\"}";
        let failed = |length: &str| format!("max by ({PROCESS}, framework) (max_over_time({failed}[{length}]))");
        // What a process had counted in the interval before the range does not belong to the range.
        let longer = Span { begin: span.begin - span.interval, ..span };
        answers.out_of_memory = parts(prometheus, longer, failed).await?;
    }

    answers.gpu_total = prometheus.query(&highest("cluster, uuid", "gpu_memory_total_bytes"), end).await?;
    answers.gpu_reserved = prometheus.query(&highest("cluster, uuid", "gpu_memory_reserved_bytes"), end).await?;
    let mig = "cluster, uuid, mig_uuid";
    answers.mig_total =
        prometheus.query(&highest(&format!("{mig}, profile"), "gpu_mig_memory_total_bytes"), end).await?;
    answers.mig_reserved = prometheus.query(&highest(mig, "gpu_mig_memory_reserved_bytes"), end).await?;
    let info = format!("group by (cluster, uuid, name, simulated) (present_over_time(gpu_info[{range}]))");
    answers.gpu_info = prometheus.query(&info, end).await?;
    Ok(answers)
}

/// A range selector without the moment at its beginning: in Prometheus 2, a range includes both ends.
fn milliseconds(seconds: u64) -> String {
    format!("{}ms", seconds * 1000 - 1)
}

/// The values at the end of each interval, in [`PARTS`] requests and one for a shorter last interval. A series occurs once for
/// each part in which it has points. `query` gets the length of the interval.
async fn parts(prometheus: &mut Prometheus, span: Span, query: impl Fn(&str) -> String) -> Result<Vec<Series>, Error> {
    let mut series = Vec::new();
    let whole = query(&milliseconds(span.interval));
    let length = span.whole().div_ceil(PARTS);
    let mut first = 0;
    while first < span.whole() {
        let last = (first + length - 1).min(span.whole() - 1);
        let [start, end] = [first, last].map(|index| span.begin + span.interval * (index + 1));
        let part = prometheus.query_range(&whole, [start, end, span.interval]).await?;
        let is_asked = |time| (start..=end).contains(&time) && (time - start) % span.interval == 0;
        if let Some(point) = part.iter().flat_map(|series| &series.points).find(|point| !is_asked(point.time)) {
            let asked = format!("every {} s from {start} to {end}", span.interval);
            return Err(
                prometheus.foreign(format!("it returned a value at {}, which was not asked for ({asked})", point.time))
            );
        }
        series.extend(part);
        first = last + 1;
    }
    if let Some(rest) = span.rest() {
        let mut last = prometheus.query(&query(&milliseconds(rest)), span.end).await?;
        // A server may name the moment to which it rounded the time.
        last.iter_mut().flat_map(|series| &mut series.points).for_each(|point| point.time = span.end);
        series.extend(last);
    }
    Ok(series)
}
