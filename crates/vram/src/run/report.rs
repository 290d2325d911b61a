//! The report, as plain values: the JSON form is this struct, and the text form is generated from it. `docs/run.md`
//! describes every field.
//!
//! Invariant: a value that was not measured is absent. Times are seconds since the start of the command.

use std::time::UNIX_EPOCH;

use gpu_readings::snapshot::ProcessId;
use serde::Serialize;
use serde_with_macros::skip_serializing_none;
use text_and_sizes::sizing::boards::{self, Size};

use super::allocators::{self, AllocatorUse};
use super::child::Ended;
use super::facts::Facts;
use super::names::Owners;
use super::notes;
use super::places::Place;
use super::readings::State;
use super::record::{Extreme, Membership, PlaceRecord, ProcessRecord, Rhythm};

/// The version of the JSON form. It is incremented when the meaning of a field changes or a field is removed.
const VERSION: u8 = 1;
/// Bytes that a CUDA context uses in addition to those that the driver attributes to its process, as measured on an
/// H200.
const CONTEXT_OVERHEAD: u64 = 8 << 20;

/// The report.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: u8,
    pub(super) simulated: bool,
    pub(super) command: Vec<String>,
    pub(super) exit_status: u8,
    pub(super) signal: Option<&'static str>,
    start_time_seconds: f64,
    pub(super) duration_seconds: f64,
    followed_seconds: Option<f64>,
    driver_version: Option<String>,
    pub(super) sampling: Option<Sampling>,
    pub(super) together: Option<Together>,
    pub(super) gpus: Vec<Gpu>,
    /// What the command's processes reported about their memory allocators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) allocators: Vec<AllocatorUse>,
    pub(super) fits_in: Option<Fits>,
    pub(super) notes: Vec<String>,
}

/// How often samples were taken and lists were read.
#[derive(Debug, Serialize)]
pub(super) struct Sampling {
    pub(super) samples: u64,
    pub(super) longest_gap_seconds: f64,
    pub(super) lists: u64,
    pub(super) longest_list_gap_seconds: f64,
}

/// The highest sum of the command's processes, over all GPUs or on one.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct Together {
    pub(super) peak_bytes: u64,
    pub(super) peak_seconds: f64,
    /// Whether more may have been held, because the memory changed while the lists of several GPUs were read, or because calls
    /// tell of more than was read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) at_least: bool,
    /// The number of the command's processes at the moment of the peak; present only for a single GPU.
    processes: Option<usize>,
}

/// A GPU or MIG device.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct Gpu {
    pub(super) gpu: u32,
    pub(super) uuid: String,
    pub(super) name: Option<String>,
    pub(super) mig: Option<Mig>,
    pub(super) allocatable_bytes: Option<u64>,
    pub(super) used_peak_bytes: Option<u64>,
    pub(super) used_peak_seconds: Option<f64>,
    /// Whether calls tell the peak, which is then a lower bound.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) used_peak_from_calls: bool,
    listed_peak_bytes: Option<u64>,
    pub(super) least_free_bytes: Option<u64>,
    pub(super) least_free_seconds: Option<f64>,
    pub(super) nearly_full_seconds: Option<f64>,
    pub(super) together: Option<Together>,
    /// The command's processes, the largest first. `None` if no list could be read.
    pub(super) processes: Option<Vec<Process>>,
    /// The other processes that were seen on the GPU, the largest first. `None` if no list could be read.
    pub(super) others: Option<Vec<Process>>,
}

/// A MIG device of the GPU.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct Mig {
    index: u32,
    uuid: String,
    profile: Option<String>,
}

/// A process on one GPU.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct Process {
    #[serde(skip)]
    pub(super) key: ProcessId,
    pub(super) pid: u32,
    pub(super) name: Option<String>,
    pub(super) user: Option<String>,
    workload: Option<String>,
    pub(super) peak_bytes: Option<u64>,
    pub(super) peak_seconds: Option<f64>,
    /// Whether calls tell the peak, which is then a lower bound.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) peak_from_calls: bool,
}

/// The smallest board and MIG profile on which the command would have fitted.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct Fits {
    /// Bytes needed on the GPU on which the command held the most memory.
    pub(super) needed_bytes: u64,
    /// Whether more may have been needed, because a spike was too short for the processes to be listed.
    pub(super) at_least: bool,
    pub(super) board: Option<Board>,
    pub(super) mig_profile: Option<Board>,
}

/// A board or MIG profile.
#[derive(Debug, Serialize)]
pub(super) struct Board {
    pub(super) name: &'static str,
    pub(super) allocatable_bytes: u64,
}

impl Gpu {
    /// `GPU 0`, `GPU 0 MIG 1 (1g.10gb)`.
    pub(super) fn label(&self) -> String {
        match &self.mig {
            None => format!("GPU {}", self.gpu),
            Some(Mig { index, profile: None, .. }) => format!("GPU {} MIG {index}", self.gpu),
            Some(Mig { index, profile: Some(profile), .. }) => format!("GPU {} MIG {index} ({profile})", self.gpu),
        }
    }

    /// The UUID of the GPU, or of the MIG device.
    pub(super) fn device(&self) -> &str {
        self.mig.as_ref().map_or(&self.uuid, |mig| &mig.uuid)
    }
}

impl Report {
    /// Builds the report from what was measured.
    pub(super) fn of(facts: &Facts, state: &State, owners: &Owners) -> Self {
        let places = state.machine.as_ref().map_or(&[][..], |machine| &machine.places);
        let records = &state.record.places;
        let gpus: Vec<Gpu> = places.iter().zip(records).map(|(place, record)| gpu(place, record, owners)).collect();
        let record = &state.record;
        let (samples, lists) = (most(records, |place| place.samples), most(records, |place| place.lists));
        let sampling = (samples.count > 0).then_some(Sampling {
            samples: samples.count,
            longest_gap_seconds: samples.longest_gap.as_secs_f64(),
            lists: lists.count,
            longest_list_gap_seconds: lists.longest_gap.as_secs_f64(),
        });
        let allocators = allocators::of(facts, places, owners);
        let mut notes = notes::of(facts, state, &gpus.iter().map(Gpu::label).collect::<Vec<_>>());
        notes.extend(allocators::notes(facts, &allocators));
        let signal = match facts.ended {
            Ended::Killed(signal) => Some(signal.as_str()),
            Ended::Exited(_) => None,
        };
        Self {
            version: VERSION,
            simulated: state.machine.as_ref().is_some_and(|machine| machine.simulated),
            command: facts.command.iter().map(|part| part.to_string_lossy().into_owned()).collect(),
            exit_status: facts.ended.status(),
            signal,
            start_time_seconds: facts.begun.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            duration_seconds: facts.duration.as_secs_f64(),
            followed_seconds: facts.followed.as_ref().map(|followed| followed.time.as_secs_f64()),
            driver_version: state.machine.as_ref().and_then(|machine| machine.driver_version.clone()),
            sampling,
            together: together(
                record.together,
                highest(records),
                record.together_is_at_least() || records.iter().any(PlaceRecord::has_higher_calls),
                None,
            ),
            fits_in: fits(records),
            allocators,
            notes,
            gpus,
        }
    }
}

/// How often the devices were read: the highest number, and the longest gap, of any device.
fn most(records: &[PlaceRecord], of: fn(&PlaceRecord) -> Rhythm) -> Rhythm {
    records.iter().map(of).fold(Rhythm::default(), |most, one| Rhythm {
        count: most.count.max(one.count),
        longest_gap: most.longest_gap.max(one.longest_gap),
        ..most
    })
}

/// The highest of the command's processes that calls tell, of any device.
fn highest(records: &[PlaceRecord]) -> Option<Extreme> {
    records.iter().filter_map(PlaceRecord::tree_call_peak).max_by_key(|peak| peak.bytes)
}

fn together(
    read: Option<Extreme>,
    calls: Option<Extreme>,
    at_least: bool,
    processes: Option<usize>,
) -> Option<Together> {
    let (peak, is_bound) = Extreme::or_bound(read, calls);
    let Extreme { bytes, at } = peak?;
    let processes = processes.filter(|_| !is_bound);
    Some(Together { peak_bytes: bytes, peak_seconds: at.as_secs_f64(), at_least: at_least || is_bound, processes })
}

fn gpu(place: &Place, record: &PlaceRecord, owners: &Owners) -> Gpu {
    let of = |wanted: fn(Membership) -> bool| {
        let listed = record.processes.as_ref()?.iter().filter(move |(_, process)| wanted(process.membership));
        let mut listed: Vec<_> = listed.map(|(key, process)| describe(key, process, owners)).collect();
        listed.sort_by_key(|process| std::cmp::Reverse(process.peak_bytes));
        Some(listed)
    };
    let mig =
        place.mig.as_ref().map(|mig| Mig { index: mig.index, uuid: mig.uuid.clone(), profile: mig.profile.clone() });
    let (used_peak, used_peak_from_calls) = Extreme::or_bound(record.own_peak, record.own_call_peak);
    Gpu {
        gpu: place.gpu.index,
        uuid: place.gpu.uuid.clone(),
        name: place.gpu.name.clone(),
        mig,
        allocatable_bytes: record.allocatable,
        used_peak_bytes: used_peak.map(|peak| peak.bytes),
        used_peak_seconds: used_peak.map(|peak| peak.at.as_secs_f64()),
        used_peak_from_calls,
        listed_peak_bytes: record.listed_peak,
        least_free_bytes: record.least_free.map(|least| least.bytes),
        least_free_seconds: record.least_free.map(|least| least.at.as_secs_f64()),
        nearly_full_seconds: record.own_peak.map(|_| record.nearly_full.as_secs_f64()),
        together: together(
            record.tree_peak,
            record.tree_call_peak(),
            record.has_higher_calls(),
            Some(record.tree_processes),
        ),
        processes: of(|membership| membership == Membership::Tree),
        others: of(|membership| membership != Membership::Tree),
    }
}

fn describe(key: &ProcessId, process: &ProcessRecord, owners: &Owners) -> Process {
    let owner = owners.get(key);
    let (peak, peak_from_calls) = Extreme::or_bound(process.peak, process.call_peak);
    Process {
        key: *key,
        pid: key.pid,
        name: owner.and_then(|owner| owner.name.clone()),
        user: owner.and_then(|owner| owner.user.clone()),
        workload: owner.and_then(|owner| Some(owner.workload.as_ref()?.name.clone())),
        peak_bytes: peak.map(|peak| peak.bytes),
        peak_seconds: peak.map(|peak| peak.at.as_secs_f64()),
        peak_from_calls,
    }
}

/// `None` if the command held no GPU memory.
fn fits(records: &[PlaceRecord]) -> Option<Fits> {
    let bound = |record: &PlaceRecord| Extreme::or_bound(record.tree_peak, record.tree_call_peak());
    let needed = |record: &PlaceRecord| {
        let peak = bound(record).0?.bytes;
        Some(peak.saturating_add(CONTEXT_OVERHEAD.saturating_mul(record.tree_processes as u64)))
    };
    let needed_bytes = records.iter().filter_map(needed).max()?;
    let board = |size: &'static Size| Board { name: size.name, allocatable_bytes: size.allocatable() };
    let on = records.iter().filter(|record| bound(record).0.is_some());
    Some(Fits {
        needed_bytes,
        at_least: on
            .clone()
            .any(|record| record.spike().is_some() || record.unknown_memory || record.has_higher_calls()),
        board: boards::board(needed_bytes).map(board),
        mig_profile: boards::profile(needed_bytes).map(board),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::record::{Entry, Record};
    use super::*;

    const MIB: u64 = 1 << 20;

    fn record(spike: u64) -> Record {
        let mut record = Record::of(1);
        let key = ProcessId { pid: 7, start_ticks: Some(1) };
        let entry = Entry { key, membership: Membership::Tree, used: Some(4_800 * MIB) };
        record.see(0, Duration::ZERO, 4_810 * MIB, 40_000 * MIB);
        record.list(0, Duration::ZERO, &[entry], [Some(4_810 * MIB); 2]);
        record.see(0, Duration::from_millis(7), spike * MIB, 40_000 * MIB);
        record
    }

    #[test]
    fn the_overhead_of_the_context_is_part_of_what_must_fit() {
        let fits = fits(&record(4_810).places).unwrap();
        assert_eq!((fits.needed_bytes, fits.at_least), (4_808 * MIB, false));
        assert_eq!(fits.board.unwrap().name, "T4");
        assert_eq!(fits.mig_profile.unwrap().name, "1g.5gb of an A100 40GB");
    }

    #[test]
    fn a_spike_without_a_list_makes_the_need_a_lower_bound() {
        assert_eq!(record(4_842).places[0].spike(), None);
        let record = record(9_000);
        assert_eq!(record.places[0].spike().map(|peak| peak.bytes), Some(9_000 * MIB));
        assert!(fits(&record.places).unwrap().at_least);
    }

    #[test]
    fn a_peak_that_calls_tell_is_the_peak_as_a_lower_bound() {
        let mut record = record(4_810);
        let (seen, at) = (record.places[0].tree_peak, Duration::from_millis(9));
        for (process, mib) in [(Some(7), 4_700), (Some(7), 6_000), (Some(8), 9_000), (None, 7_000), (None, 4_000)] {
            let key = process.map(|pid| ProcessId { pid, start_ticks: Some(1) });
            record.see_call(0, at, key, mib * MIB);
        }
        let place = &record.places[0];
        assert_eq!(place.tree_call_peak().map(|peak| peak.bytes), Some(6_000 * MIB), "process 8 is on no list");
        assert_eq!(place.own_call_peak.map(|peak| peak.bytes), Some(7_000 * MIB));
        assert_eq!(place.tree_peak, seen, "what was read stays");
        let peak = together(place.tree_peak, place.tree_call_peak(), false, Some(1)).unwrap();
        assert_eq!((peak.peak_bytes, peak.at_least, peak.processes), (6_000 * MIB, true, None));
        let fits = fits(&record.places).unwrap();
        assert_eq!((fits.needed_bytes, fits.at_least), (6_008 * MIB, true));
        // A bound of one of two processes below their sum: together they held more than was read.
        let mut two = Record::of(1);
        let key = |pid| ProcessId { pid, start_ticks: Some(1) };
        let entry = |pid| Entry { key: key(pid), membership: Membership::Tree, used: Some(5_000 * MIB) };
        two.see(0, Duration::ZERO, 10_010 * MIB, 40_000 * MIB);
        two.list(0, Duration::ZERO, &[entry(7), entry(8)], [Some(10_010 * MIB); 2]);
        two.see_call(0, at, Some(key(7)), 9_000 * MIB);
        let place = &two.places[0];
        let peak = together(place.tree_peak, place.tree_call_peak(), place.has_higher_calls(), Some(2)).unwrap();
        assert_eq!((peak.peak_bytes, peak.at_least, peak.processes), (10_000 * MIB, true, Some(2)));
        assert!(super::fits(&two.places).unwrap().at_least);
        // A list that shows more overrules them.
        let key = ProcessId { pid: 7, start_ticks: Some(1) };
        let entry = Entry { key, membership: Membership::Tree, used: Some(6_001 * MIB) };
        record.list(0, Duration::from_secs(1), &[entry], [Some(6_010 * MIB); 2]);
        let process = describe(&key, &record.places[0].processes.as_ref().unwrap()[&key], &Owners::new());
        assert_eq!((process.peak_bytes, process.peak_from_calls), (Some(6_001 * MIB), false));
    }

    #[test]
    fn a_command_without_gpu_memory_has_no_need() {
        assert!(fits(&Record::of(2).places).is_none());
    }
}
