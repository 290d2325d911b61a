//! A call returns all NVML error codes at the same time: the machine has one GPU for each code, and one that stays
//! healthy.
//!
//! Invariant: each refusal is awaited, never checked only once; and a call is tested only when no effect of the
//! previous call is left, so that every effect is caused by the call under test.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use nix::sys::signal::Signal;

use super::table::{AtOpening, CODES, Costs, REFUSED_FOR_GOOD, Repeated, Silent};
use super::{faults, rounds, up};
use crate::harness::{Exporter, Machine, Scrape, Series, eventually, eventually_or};

/// Each call is tested soon after the previous one. The time between two process passes over this many GPUs must be
/// enough for their readings, even on a busy machine.
pub(crate) const QUICKLY: [&str; 5] = [
    "--telemetry.energy=true",
    "--telemetry.fan-speed=true",
    "--telemetry.performance-state=true",
    "--process.interval=500ms",
    "--process.linger=0s",
];

/// Shown for a GPU whose MIG devices are known.
const OF_SLICES: &str = "gpu_mig_memory_total_bytes";

/// Present only if the driver has taken a sample since the last query; it does not take one every tenth of a second.
const COMES_AND_GOES: &str = "gpu_process_sm_utilization_ratio";

/// The sum of each family on each GPU. Several series of a family on one GPU count as one.
pub(crate) fn shown_values(scrape: &Scrape) -> BTreeMap<(String, String), f64> {
    let mut told = BTreeMap::new();
    let is_incident = |series: &Series| series.name.contains("_incident");
    let lasting =
        |series: &&Series| series.name.starts_with("gpu_") && series.name != COMES_AND_GOES && !is_incident(series);
    for series in scrape.series.iter().filter(lasting) {
        if let Some(gpu) = series.label("gpu") {
            *told.entry((gpu.to_owned(), series.name.clone())).or_default() += series.value;
        }
    }
    told
}

/// The families of each GPU.
pub(crate) type Families = BTreeMap<String, BTreeSet<String>>;

fn families(scrape: &Scrape) -> Families {
    let mut families = Families::new();
    for (gpu, family) in shown_values(scrape).into_keys() {
        families.entry(gpu).or_default().insert(family);
    }
    families
}

/// Families for which 0 is a valid value: they start at 0, or use it to indicate that a GPU does not respond.
fn may_fall_to_zero(family: &str) -> bool {
    let counts = family.ends_with("_total") || family.ends_with("_seconds");
    counts
        || ["gpu_up", "gpu_process_memory_window_peak_bytes", "gpu_workload_memory_window_peak_bytes"].contains(&family)
}

/// Whether everything that is shown was also shown before the call failed, and no known value became 0.
pub(crate) fn is_nothing_invented(good: &BTreeMap<(String, String), f64>, now: &Scrape, what: &str) {
    for ((gpu, family), value) in shown_values(now) {
        let before = good.get(&(gpu.clone(), family.clone()));
        assert!(before.is_some(), "{what}: {family} of GPU {gpu} was never shown before");
        let vanished = value == 0.0 && before != Some(&0.0) && !may_fall_to_zero(&family);
        assert!(!vanished, "{what}: {family} of GPU {gpu} is shown as 0");
    }
}

/// Lets every lane finish its current round and do this many more.
pub(crate) fn more_rounds(exporter: &Exporter, more: f64) {
    let begin = exporter.scrape();
    let lanes = ["memory", "process", "telemetry"];
    exporter.scrape_until("more rounds of every lane", |s| {
        lanes.iter().all(|lane| rounds(s, lane) > rounds(&begin, lane) + more)
    });
}

/// Makes the exporter release the driver. Afterwards no call is in progress and none will be made.
pub(crate) fn release(exporter: &Exporter) -> Scrape {
    exporter.signal(Signal::SIGUSR1);
    eventually("the driver is closed", || {
        exporter.get("/readyz").ok().filter(|answer| answer.body.contains("at the latest"))
    });
    exporter.scrape()
}

/// Makes the exporter open the driver without a back-off, and waits until it is open or opening it is refused.
pub(crate) fn reacquire(exporter: &Exporter) {
    exporter.signal(Signal::SIGUSR1);
    eventually("the driver is open or refused", || {
        exporter.get("/readyz").ok().filter(|answer| !answer.body.contains("at the latest"))
    });
}

/// How many faults with this reason were counted, for one source or for all.
pub(crate) fn counted(scrape: &Scrape, source: Option<&str>, reason: &str) -> f64 {
    let of_source = |s: &&Series| source.is_none_or(|source| s.label("source") == Some(source));
    let pairs = scrape.all("vram_exporter_faults_by_reason_total").filter(of_source);
    pairs.filter(|s| s.label("reason") == Some(reason)).map(|s| s.value).sum()
}

fn info<'s>(scrape: &'s Scrape, gpu: &str, label: &str) -> Option<&'s str> {
    scrape.all("gpu_info").find(|s| s.label("gpu") == Some(gpu))?.label(label)
}

/// The GPUs that refuse a call, each with its code and the reason under which the refusal is counted.
fn meeting() -> impl Iterator<Item = (String, &'static str, &'static str)> {
    CODES.iter().zip(1..).map(|(&(code, reason), gpu)| (format!("{gpu}"), code, reason))
}

fn fault_of_each_code(calls: &[&str]) -> String {
    let fault =
        |(gpu, code, _)| format!("[[fault]]\ncall = {calls:?}\ngpu = {gpu}\nkind = \"error\"\ncode = \"{code}\"\n");
    meeting().map(fault).collect()
}

/// One exporter on a machine whose first GPU stays healthy, followed by one GPU for each code.
pub(crate) struct Bench {
    machine: Machine,
    exporter: Exporter,
    /// What was shown before anything failed.
    good: BTreeMap<(String, String), f64>,
    families: Families,
    /// The line that names a process's MIG device; empty if the GPUs have none.
    slot: &'static str,
    marks: Cell<u32>,
}

impl Bench {
    /// Each GPU has a process whose memory does not change.
    pub(crate) fn new(model: &str, also: &str, rhythm: [&str; 2]) -> Self {
        let count = CODES.len() + 1;
        let gpus = format!("seed = 1\n[[gpu]]\nmodel = \"{model}\"\ncount = {count}\naccounting = true\n{also}");
        let slot = if also.contains("mig") { "mig = 0\n" } else { "" };
        let process = |gpu| {
            format!("[[process]]\npid = {}\ngpu = {gpu}\n{slot}memory = \"2GiB\"\nutilization = 0.5\n", 100 + gpu)
        };
        let machine = Machine::new(&(gpus + &(0..count).map(process).collect::<String>()));
        let exporter = machine.export(&[&QUICKLY[..], &rhythm].concat());
        more_rounds(&exporter, 3.0);
        // The driver does not report what processes did on a GPU with MIG devices.
        let last = if slot.is_empty() { "gpu_process_idle_seconds" } else { "gpu_process_memory_used_bytes" };
        // From Hopper on, a GPU has profiling counters, which take two samples.
        let is_profiled = |s: &Scrape| !model.starts_with('H') || s.all("gpu_engine_active_seconds_total").count() > 0;
        let good = exporter.scrape_until("all of every GPU", |s| {
            let families = families(s);
            is_profiled(s)
                && s.all("gpu_up").filter(|up| up.value == 1.0).count() == count
                && s.all(last).count() == count
                && (1..count).all(|gpu| families.get(&gpu.to_string()) == families.get("0"))
        });
        let (good, families) = (shown_values(&good), families(&good));
        Self { machine, exporter, good, families, slot, marks: Cell::new(0) }
    }

    /// Whether the GPU without a fault still shows everything that it showed at first.
    fn is_first_gpu_whole(&self, now: &Families) -> bool {
        now.get("0").is_some_and(|now| self.families["0"].is_subset(now))
    }

    /// Replaces the faults, and waits until the driver has read them, which is the case once a new process
    /// appears on the healthy GPU.
    /// The new faults apply to calls that begin afterwards.
    fn switch(&self, faults: &str) {
        let mark = 5000 + self.marks.replace(self.marks.get() + 1);
        let process = format!("[[process]]\npid = {mark}\ngpu = 0\n{}memory = \"1GiB\"\n", self.slot);
        self.machine.control(&format!("{process}{faults}"));
        let mark = mark.to_string();
        self.exporter.scrape_until("the driver has read the new control file", |s| {
            s.all("gpu_process_memory_used_bytes").any(|process| process.label("pid") == Some(&mark))
        });
    }

    /// Ends all faults and waits until the last of them has taken effect and been counted, and until every GPU shows
    /// its memory, its process and these families.
    fn settle(&self, needed: &[&str]) -> Scrape {
        self.switch("");
        // A refusal is counted at the end of the round in which the call was made, so the last refusal is counted
        // after one more round.
        more_rounds(&self.exporter, 1.0);
        let needed: Vec<&str> = needed.iter().copied().chain(["gpu_process_memory_used_bytes"]).collect();
        eventually_or("no trace of the call before", || {
            let scrape = self.exporter.scrape();
            let now = families(&scrape);
            let lacks = |gpu: &String| {
                let missing: Vec<_> = needed.iter().filter(|&&family| !now[gpu].contains(family)).collect();
                (!missing.is_empty()).then(|| format!("GPU {gpu} lacks {missing:?}"))
            };
            let lacking: Vec<_> = self.families.keys().filter_map(lacks).collect();
            let is_whole = self.is_first_gpu_whole(&now);
            if is_whole && lacking.is_empty() && scrape.all("gpu_up").all(|up| up.value == 1.0) {
                Ok(scrape)
            } else {
                Err(format!("the first GPU is whole: {is_whole}; {lacking:?}"))
            }
        })
    }

    /// Waits until every refusal has taken effect. The caller specifies which effect each code must have.
    fn await_all(&self, what: &str, felt: impl Fn(&Scrape, &Families, (&str, &str, &str)) -> bool) {
        let unfelt = |s: &Scrape| -> Vec<&str> {
            let now = families(s);
            if !self.is_first_gpu_whole(&now) || up(s, "0") != Some(1.0) {
                return vec!["all of the GPU that stays well"];
            }
            let unfelt = meeting().filter(|(gpu, code, reason)| !felt(s, &now, (gpu, code, reason)));
            unfelt.map(|(_, code, _)| code).collect()
        };
        let now = eventually_or(what, || {
            let now = self.exporter.scrape();
            let unfelt = unfelt(&now);
            if unfelt.is_empty() { Ok(now) } else { Err(format!("not felt: {unfelt:?}")) }
        });
        is_nothing_invented(&self.good, &now, what);
    }

    /// Tests every code with a call that is made again and again.
    pub(crate) fn meets(&self, call: &Repeated) {
        let what = call.names[0];
        let tells = match call.costs {
            Costs::Only(tells) | Costs::AtLeast(tells) => tells,
            Costs::Nothing => &[],
        };
        let before = self.settle(tells);
        let had = families(&before);
        self.machine.control(&fault_of_each_code(call.names));
        self.await_all(what, |s, now, (gpu, code, reason)| {
            if call.answers.contains(&code) {
                return true;
            }
            let for_good = REFUSED_FOR_GOOD.contains(&reason);
            let same = CODES.iter().filter(|(code, of)| *of == reason && !call.answers.contains(code)).count();
            let wanted = if for_good { 1.0 } else { same as f64 };
            let counted = counted(s, Some(call.source), reason) >= counted(&before, Some(call.source), reason) + wanted;
            let gone: BTreeSet<&str> = had[gpu].difference(&now[gpu]).map(String::as_str).collect();
            match call.costs {
                Costs::Only(tells) => gone == tells.iter().copied().collect() && (counted || for_good),
                Costs::AtLeast(tells) => tells.iter().all(|family| gone.contains(family)) && (counted || for_good),
                Costs::Nothing => counted || (for_good && info(s, gpu, "mig_mode") != info(&before, gpu, "mig_mode")),
            }
        });
    }

    /// Tests every code with a call that is made when the driver is opened. Nothing is counted while it is closed.
    pub(crate) fn meets_at_opening(&self, call: &AtOpening) {
        let before = release(&self.exporter);
        self.machine.control(&fault_of_each_code(&[call.name]));
        reacquire(&self.exporter);
        self.exporter.scrape_until("the driver is open", |s| up(s, "0") == Some(1.0));
        more_rounds(&self.exporter, 2.0);
        self.await_all(call.name, |s, now, (gpu, _, reason)| {
            let silent = match call.silent {
                Silent::No => false,
                Silent::ForGood => REFUSED_FOR_GOOD.contains(&reason),
            };
            let unnamed = call.label.is_some_and(|label| info(s, gpu, label).is_none());
            let unsliced = self.families[gpu].contains(OF_SLICES) && !now[gpu].contains(OF_SLICES);
            let told_less = unnamed || unsliced || up(s, gpu) == Some(0.0);
            silent || told_less || counted(s, None, reason) > counted(&before, None, reason)
        });
    }

    /// Everything recovers by itself: the exporter does not give up on a GPU because it once refused a call.
    pub(crate) fn comes_back(self) {
        self.machine.control("");
        let after = self.exporter.scrape_until("all is as it was", |s| {
            families(s) == self.families && s.all("gpu_up").all(|gpu| gpu.value == 1.0)
        });
        for lane in ["memory", "process", "telemetry", "library"] {
            assert_eq!(faults(&after, lane, "panicked"), 0.0);
        }
        assert_eq!(self.exporter.get("/healthz").unwrap().status, 200);
        let log = self.exporter.log();
        assert!(!log.contains("control.toml"), "a fault was not understood: {log}");
        assert!(self.exporter.terminate().success());
    }
}
