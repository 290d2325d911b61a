//! The advice in the units that people type.
//!
//! Invariants: what a scheduler grants is rounded up, so that it is never less than the advice; what a framework may take is
//! rounded down, so that all its processes, with their memory outside the allocators, never take more than the advice.

use text_and_sizes::sizing::boards;

use super::devices::{Devices, GpuKey, Memory};
use super::record::{Beyond, Size, Units};
use super::run_key::RunKey;

const MIB: u64 = 1 << 20;
/// The memory of a process outside its allocators if no client reports it: a CUDA context on an H200, driver 580.
const CONTEXT: u64 = 520 * MIB;

/// What the units are made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) advice: u64,
    pub(super) peak: u64,
    /// Of one process, reported by a client, in bytes.
    pub(super) outside: Option<u64>,
    /// The highest number of processes at the same time; 0 if it is not known.
    pub(super) processes: u64,
    pub(super) gpu: &'a GpuKey,
    pub(super) mig_uuid: Option<&'a str>,
}

/// The units; `None` if the memory of the device is not known.
pub(super) fn units(given: Given<'_>, devices: &Devices) -> Option<Units> {
    let memory = devices.memory(given.gpu, given.mig_uuid)?;
    let processes = given.processes.max(1);
    let outside = given.outside.unwrap_or(CONTEXT.min(given.peak / 4 / processes));
    let inside = given.advice.saturating_sub(outside.saturating_mul(processes));
    let on_mig = given.mig_uuid.is_some();
    let mib = given.advice.div_ceil(MIB);
    Some(Units {
        device_total_bytes: memory.total,
        device_allocatable_bytes: memory.allocatable(),
        board: board(given.advice, devices),
        mig_profile: mig_profile(given.advice, given.gpu, devices),
        kai_gpu_fraction: kai_fraction(given.advice, memory.total).filter(|_| !on_mig),
        kai_gpu_memory_mib: mib,
        hami_gpumem_mib: mib,
        torch_memory_fraction: fraction(inside, memory),
        xla_client_mem_fraction: fraction(inside, memory),
        vllm_gpu_memory_utilization: fraction(given.advice, memory),
        processes,
        outside_bytes: outside,
        outside_assumed: given.outside.is_none(),
    })
}

/// The device of a run, and the smallest board of the fleet that has more memory than it and at least `wanted` bytes.
pub(super) fn beyond(key: &RunKey, memory: Memory, wanted: u64, devices: &Devices) -> Beyond {
    let name = devices.name(&key.gpu(), key.mig_uuid.as_deref()).map(str::to_owned);
    let allocatable_bytes = memory.allocatable();
    let larger_board = board(wanted.max(allocatable_bytes.saturating_add(1)), devices);
    Beyond { name, allocatable_bytes, larger_board }
}

/// The smallest board of the fleet that is large enough.
fn board(bytes: u64, devices: &Devices) -> Option<Size> {
    let large_enough = devices.boards().into_iter().filter(|(_, allocatable)| *allocatable >= bytes);
    let (name, allocatable_bytes) = large_enough.min_by_key(|(name, allocatable)| (*allocatable, *name))?;
    Some(Size { name: name.to_owned(), allocatable_bytes, seen: None })
}

/// The smallest MIG profile of the GPU that is large enough. A profile that the fleet has is as large as it was seen there,
/// whatever the table says.
pub(super) fn mig_profile(bytes: u64, gpu: &GpuKey, devices: &Devices) -> Option<Size> {
    let gpu = devices.gpus.get(gpu)?;
    let name = gpu.name.as_deref()?;
    let seen = devices.profiles_seen(name);
    let table = boards::profiles(name, gpu.memory?.total).filter(|(profile, _)| !seen.contains_key(profile));
    let table = table.map(|(name, allocatable)| (allocatable, name, false));
    let all = seen.iter().map(|(name, allocatable)| (*allocatable, *name, true)).chain(table);
    let (allocatable_bytes, name, seen) = all.filter(|(allocatable, ..)| *allocatable >= bytes).min()?;
    Some(Size { name: name.to_owned(), allocatable_bytes, seen: Some(seen) })
}

/// The share of the total in hundredths, rounded up; `None` if it is a whole GPU.
fn kai_fraction(bytes: u64, total: u64) -> Option<f64> {
    let hundredths = if total > 0 { (u128::from(bytes) * 100).div_ceil(total.into()) } else { 0 };
    (1..100).contains(&hundredths).then(|| hundredths as f64 / 100.0)
}

/// The share of what CUDA reports as the total, which is what can be allocated, in ten-thousandths, rounded down; `None` if
/// it is 0 or more than 1.
fn fraction(bytes: u64, memory: Memory) -> Option<f64> {
    let parts = (u128::from(bytes) * 10_000).checked_div(u128::from(memory.allocatable()))?;
    (1..=10_000).contains(&parts).then(|| parts as f64 / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::super::prometheus::{Point, Series};
    use super::super::queries::Answers;
    use super::*;

    fn series(labels: &[(&str, &str)], value: u64) -> Series {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Series { labels, points: vec![Point { time: 1, value }] }
    }

    /// An H200, an L40S, and a MIG device on another H200, which is smaller than in the table.
    fn devices() -> Devices {
        let gpus = [("H", "NVIDIA H200", 143_771), ("M", "NVIDIA H200", 143_771), ("L", "NVIDIA L40S", 46_068)];
        Devices::new(&Answers {
            gpu_total: gpus.iter().map(|(uuid, _, mib)| series(&[("uuid", uuid)], mib * MIB)).collect(),
            gpu_reserved: gpus.iter().map(|(uuid, ..)| series(&[("uuid", uuid)], 616 * MIB)).collect(),
            gpu_info: gpus.iter().map(|(uuid, name, _)| series(&[("uuid", uuid), ("name", name)], 1)).collect(),
            mig_total: vec![series(&[("uuid", "M"), ("mig_uuid", "I"), ("profile", "1g.18gb")], 16_000 * MIB)],
            ..Answers::default()
        })
    }

    fn of(advice: u64, outside: Option<u64>, uuid: &str, mig_uuid: Option<&str>) -> Units {
        let gpu = (None, uuid.to_owned());
        units(Given { advice, peak: advice * 100 / 115, outside, processes: 1, gpu: &gpu, mig_uuid }, &devices())
            .unwrap()
    }

    #[test]
    fn a_request_is_rounded_up_and_a_limit_down() {
        let advice = 20_000 * MIB + 1;
        let found = of(advice, Some(600 * MIB), "H", None);
        assert_eq!((found.kai_gpu_memory_mib, found.hami_gpumem_mib), (20_001, 20_001));
        let fraction = found.kai_gpu_fraction.unwrap();
        assert!(fraction == 0.14 && fraction * 143_771.0 * MIB as f64 >= advice as f64);
        let torch = found.torch_memory_fraction.unwrap();
        let allocatable = (143_155 * MIB) as f64;
        assert!(torch == 0.1355 && torch * allocatable + (600 * MIB) as f64 <= advice as f64);
        assert_eq!((found.xla_client_mem_fraction, found.vllm_gpu_memory_utilization), (Some(0.1355), Some(0.1397)));
        assert_eq!((found.outside_bytes, found.outside_assumed), (600 * MIB, false));
        let size =
            |name: &str, mib: u64, seen| Some(Size { name: name.to_owned(), allocatable_bytes: mib * MIB, seen });
        assert_eq!(found.board, size("NVIDIA L40S", 45_452, None));
        assert_eq!(found.mig_profile, size("1g.35gb", 33_264, Some(false)));
    }

    #[test]
    fn a_profile_is_as_large_as_it_was_seen() {
        let profile = |mib| of(mib * MIB, None, "H", None).mig_profile.map(|size| (size.name, size.seen));
        assert_eq!(profile(16_000), Some(("1g.18gb".to_owned(), Some(true))));
        assert_eq!(profile(16_001), Some(("1g.35gb".to_owned(), Some(false))));
        assert_eq!(profile(143_155), None);
        let on_mig = of(4_000 * MIB, None, "M", Some("I"));
        assert_eq!((on_mig.kai_gpu_fraction, on_mig.device_total_bytes), (None, 16_000 * MIB));
        assert_eq!(on_mig.vllm_gpu_memory_utilization, Some(0.25));
    }

    #[test]
    fn each_of_several_processes_has_a_context() {
        let gpu = (None, "H".to_owned());
        let of = |processes, outside| {
            let given =
                Given { advice: 20_000 * MIB, peak: 16_000 * MIB, outside, processes, gpu: &gpu, mig_uuid: None };
            let found = units(given, &devices()).unwrap();
            (found.processes, found.outside_bytes / MIB, found.torch_memory_fraction)
        };
        assert_eq!(of(0, Some(600 * MIB)), (1, 600, Some(0.1355)));
        assert_eq!(of(4, Some(600 * MIB)), (4, 600, Some(0.1229)));
        assert_eq!(of(4, None), (4, 520, Some(0.1251)));
        assert_eq!(of(16, None), (16, 250, Some(0.1117)), "all contexts are at most a quarter of the peak");
        assert_eq!(of(u64::MAX, Some(600 * MIB)).2, None);
    }

    #[test]
    fn more_than_a_gpu_is_no_share() {
        let found = of(150_000 * MIB, None, "H", None);
        assert_eq!((found.kai_gpu_fraction, found.torch_memory_fraction, found.board), (None, None, None));
        assert_eq!((found.outside_bytes, found.outside_assumed), (CONTEXT, true));
        let tiny = of(115, None, "H", None);
        assert_eq!((tiny.outside_bytes, tiny.torch_memory_fraction, tiny.kai_gpu_fraction), (25, None, Some(0.01)));
    }
}
