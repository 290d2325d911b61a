//! The GPUs and MIG devices of the fleet, as seen in the range.

use std::collections::{BTreeMap, BTreeSet};

use super::prometheus::Series;
use super::queries::Answers;

/// A GPU: its cluster and its UUID.
pub(super) type GpuKey = (Option<String>, String);

/// The memory of a GPU or MIG device in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Memory {
    pub(super) total: u64,
    /// What the driver and the firmware keep; 0 where it is not reported.
    reserved: u64,
}

impl Memory {
    /// Memory of which nothing is reserved.
    #[cfg(test)]
    pub(super) fn with(total: u64) -> Self {
        Self { total, reserved: 0 }
    }

    /// What processes can allocate.
    pub(super) fn allocatable(self) -> u64 {
        self.total.saturating_sub(self.reserved)
    }
}

/// A GPU. Its memory is absent if it was never read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gpu {
    pub(super) name: Option<String>,
    pub(super) memory: Option<Memory>,
    pub(super) simulated: bool,
}

/// A MIG device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Mig {
    pub(super) profile: String,
    pub(super) memory: Memory,
}

/// All devices that existed in the range.
#[derive(Debug, Default)]
pub(super) struct Devices {
    pub(super) gpus: BTreeMap<GpuKey, Gpu>,
    migs: BTreeMap<(GpuKey, String), Mig>,
}

impl Devices {
    pub(super) fn new(answers: &Answers) -> Self {
        let mut devices = Self::default();
        let values = |series: &[Series]| -> Vec<(GpuKey, String, u64)> {
            series.iter().filter_map(|series| Some((gpu(series)?, mig(series), series.value()?))).collect()
        };
        for (key, _, total) in values(&answers.gpu_total) {
            devices.gpus.entry(key).or_default().memory = Some(Memory { total, reserved: 0 });
        }
        for (key, _, reserved) in values(&answers.gpu_reserved) {
            if let Some(Gpu { memory: Some(memory), .. }) = devices.gpus.get_mut(&key) {
                memory.reserved = reserved;
            }
        }
        for series in &answers.gpu_info {
            let Some(key) = gpu(series) else { continue };
            let gpu = devices.gpus.entry(key).or_default();
            gpu.simulated |= series.label("simulated") == Some("true");
            // Two names, after a new driver, are the same board: the first in order is taken.
            gpu.name = [gpu.name.take(), series.label("name").map(str::to_owned)].into_iter().flatten().min();
        }
        for series in &answers.mig_total {
            let (Some(key), Some(total)) = (gpu(series), series.value()) else { continue };
            let profile = series.label("profile").unwrap_or_default().to_owned();
            devices.migs.insert((key, mig(series)), Mig { profile, memory: Memory { total, reserved: 0 } });
        }
        for (key, mig, reserved) in values(&answers.mig_reserved) {
            if let Some(device) = devices.migs.get_mut(&(key, mig)) {
                device.memory.reserved = reserved;
            }
        }
        devices
    }

    /// The memory of a GPU or, with a `mig_uuid`, of its MIG device; `None` if it was never read.
    pub(super) fn memory(&self, gpu: &GpuKey, mig: Option<&str>) -> Option<Memory> {
        match mig {
            None => self.gpus.get(gpu)?.memory,
            Some(mig) => self.migs.get(&(gpu.clone(), mig.to_owned())).map(|mig| mig.memory),
        }
    }

    /// The name of a GPU or, with a `mig_uuid`, the profile of its MIG device; `None` if it is unknown.
    pub(super) fn name(&self, gpu: &GpuKey, mig: Option<&str>) -> Option<&str> {
        match mig {
            None => self.gpus.get(gpu)?.name.as_deref(),
            Some(mig) => self.migs.get(&(gpu.clone(), mig.to_owned())).map(|mig| &*mig.profile),
        }
        .filter(|name| !name.is_empty())
    }

    /// The MIG profiles that were seen on GPUs of this name: name and the least that could be allocated, in bytes. Profiles
    /// that share the memory of a GPU instance, such as `1c.3g.40gb`, are left out.
    pub(super) fn profiles_seen<'a>(&'a self, name: &'a str) -> BTreeMap<&'a str, u64> {
        let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
        let on = |key: &GpuKey| self.gpus.get(key).is_some_and(|gpu| gpu.name.as_deref() == Some(name));
        for (_, mig) in self.migs.iter().filter(|((key, _), _)| on(key)) {
            if mig.profile.is_empty() || mig.profile.contains("c.") {
                continue;
            }
            let allocatable = mig.memory.allocatable();
            seen.entry(&mig.profile).and_modify(|least| *least = allocatable.min(*least)).or_insert(allocatable);
        }
        seen
    }

    /// The boards of the fleet: the name and the least that can be allocated on a GPU of this name, in bytes.
    pub(super) fn boards(&self) -> BTreeMap<&str, u64> {
        let mut boards: BTreeMap<&str, u64> = BTreeMap::new();
        for gpu in self.gpus.values() {
            let (Some(name), Some(memory)) = (&gpu.name, gpu.memory) else { continue };
            let allocatable = memory.allocatable();
            boards.entry(name).and_modify(|least| *least = allocatable.min(*least)).or_insert(allocatable);
        }
        boards
    }

    /// Names of boards on which MIG devices with this profile were seen with different sizes than the table says.
    pub(super) fn differing_profiles(&self, table: impl Fn(&str, u64, &str) -> Option<u64>) -> BTreeSet<String> {
        let mut differing = BTreeSet::new();
        for ((key, _), mig) in &self.migs {
            let Some(Gpu { name: Some(name), memory: Some(memory), .. }) = self.gpus.get(key) else { continue };
            // The table has what can be allocated; a MIG device may report nothing as reserved.
            let known = table(name, memory.total, &mig.profile);
            if known.is_some_and(|known| mig.memory.total < known) {
                differing.insert(format!("{} of {name}", mig.profile));
            }
        }
        differing
    }
}

/// The GPU of a series; `None` without a UUID.
pub(super) fn gpu(series: &Series) -> Option<GpuKey> {
    Some((series.label("cluster").map(str::to_owned), series.label("uuid")?.to_owned()))
}

fn mig(series: &Series) -> String {
    series.label("mig_uuid").unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::prometheus::{Labels, Point};
    use super::*;

    fn series(labels: &[(&str, &str)], value: u64) -> Series {
        let labels: Labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Series { labels, points: vec![Point { time: 1, value }] }
    }

    #[test]
    fn reserved_memory_cannot_be_allocated() {
        let answers = Answers {
            gpu_total: vec![series(&[("uuid", "A"), ("cluster", "c")], 100), series(&[("uuid", "A")], 80)],
            gpu_reserved: vec![series(&[("uuid", "A"), ("cluster", "c")], 7)],
            gpu_info: vec![
                series(&[("uuid", "A"), ("cluster", "c"), ("name", "H"), ("simulated", "true")], 1),
                series(&[("uuid", "A"), ("name", "H")], 1),
                series(&[("name", "H")], 1),
            ],
            mig_total: vec![
                series(&[("uuid", "A"), ("mig_uuid", "M"), ("profile", "1g.5gb")], 20),
                series(&[("uuid", "A"), ("mig_uuid", "N"), ("profile", "1g.5gb")], 19),
                series(&[("uuid", "A"), ("mig_uuid", "O"), ("profile", "1c.2g.10gb")], 9),
            ],
            mig_reserved: vec![series(&[("uuid", "A"), ("mig_uuid", "N")], 1)],
            ..Answers::default()
        };
        let devices = Devices::new(&answers);
        let key = |cluster: Option<&str>| (cluster.map(str::to_owned), "A".to_owned());
        let allocatable = |cluster, mig| devices.memory(&key(cluster), mig).map(Memory::allocatable);
        assert_eq!((allocatable(Some("c"), None), allocatable(None, None)), (Some(93), Some(80)));
        assert_eq!((allocatable(None, Some("N")), allocatable(None, Some("X"))), (Some(18), None));
        assert!(devices.gpus[&key(Some("c"))].simulated && !devices.gpus[&key(None)].simulated);
        assert_eq!(devices.boards(), BTreeMap::from([("H", 80)]));
        assert_eq!(devices.profiles_seen("H"), BTreeMap::from([("1g.5gb", 18)]));
        assert!(devices.profiles_seen("other").is_empty());
        let differing = devices.differing_profiles(|_, _, profile| (profile == "1g.5gb").then_some(20));
        assert_eq!(differing, BTreeSet::from(["1g.5gb of H".to_owned()]));
    }
}
