//! Follows the ResourceSlices of this node, and publishes what their drivers say about each device.
//!
//! Invariant: a device is published only if its pool is complete: of the slices with the pool's highest generation as many are
//! known as the pool has. A name that several of them give to different devices is not published. A pool that is being changed has no devices; what is to become of those that are in use, the reader
//! decides.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use super::Settings;
use super::error::Error;
use super::follower::{Store, follow_objects};
use super::slice::{Published, ResourceSlice};
use crate::faults::{Faults, Source};

/// The most devices of all slices together. A node has a few hundred.
const MOST_DEVICES: usize = 65_536;

/// A device of a pool: the driver, the pool and the device.
pub(crate) type DeviceKey = (String, String, String);

/// A pool: the driver and the pool.
pub(crate) type PoolKey = (String, String);

/// What the drivers publish about this node's devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slices {
    /// Whether all slices have been listed once.
    pub(crate) listed: bool,
    /// The devices of complete pools.
    pub(crate) devices: HashMap<DeviceKey, Published>,
    /// The pools, each with its driver, of which a slice is offered on this node alone.
    pub(crate) pools: HashSet<PoolKey>,
}

/// Follows the slices of this node for ever. A failure is counted as a fault, and followed by another attempt.
pub(crate) async fn follow_slices(settings: Settings, to: watch::Sender<Arc<Slices>>, faults: Arc<Faults>) {
    follow_objects(settings, SliceIndex::new(to), Source::ResourceClaims, faults).await;
}

/// The slices by name.
#[derive(Debug)]
pub(crate) struct SliceIndex {
    slices: HashMap<String, Slice>,
    /// The number of devices in `slices`.
    devices: usize,
    listed: bool,
    changed: bool,
    to: watch::Sender<Arc<Slices>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Slice {
    driver: String,
    pool: String,
    generation: i64,
    /// How many slices the pool has.
    count: i64,
    devices: Vec<(String, Published)>,
}

impl Slice {
    fn of(slice: &ResourceSlice) -> Option<Self> {
        let (driver, pool) = slice.pool()?;
        Some(Self {
            driver: driver.to_owned(),
            pool: pool.name.clone(),
            generation: pool.generation,
            count: pool.resource_slice_count,
            devices: slice.devices().map(|(name, published)| (name.to_owned(), published)).collect(),
        })
    }
}

impl SliceIndex {
    pub(crate) fn new(to: watch::Sender<Arc<Slices>>) -> Self {
        Self { slices: HashMap::new(), devices: 0, listed: false, changed: false, to }
    }

    /// The devices of the pools that are complete.
    fn shown(&self) -> HashMap<DeviceKey, Published> {
        let mut newest: HashMap<(&str, &str), (i64, i64)> = HashMap::new();
        for slice in self.slices.values() {
            let (generation, known) = newest.entry((&slice.driver, &slice.pool)).or_insert((slice.generation, 0));
            if slice.generation > *generation {
                (*generation, *known) = (slice.generation, 0);
            }
            *known += i64::from(slice.generation == *generation);
        }
        let mut shown: HashMap<_, Option<&Published>> = HashMap::new();
        for slice in self.slices.values() {
            let (generation, known) = newest[&(&*slice.driver, &*slice.pool)];
            if slice.generation == generation && known >= slice.count {
                for (device, published) in &slice.devices {
                    let same = shown.entry((&slice.driver, &slice.pool, device)).or_insert(Some(published));
                    // A name that stands for two devices tells neither of them.
                    *same = same.filter(|same| *same == published);
                }
            }
        }
        let key = |(driver, pool, device): (&String, &String, &String)| (driver.clone(), pool.clone(), device.clone());
        shown.into_iter().filter_map(|(device, published)| Some((key(device), published?.clone()))).collect()
    }
}

impl Store for SliceIndex {
    type Object = ResourceSlice;

    fn selector(&self, node: &str) -> String {
        format!("spec.nodeName={node}")
    }

    fn replace(&mut self, all: Vec<ResourceSlice>, now: Instant) -> Result<(), Error> {
        self.slices.clear();
        (self.devices, self.listed, self.changed) = (0, true, true);
        all.iter().try_for_each(|slice| self.put(slice, now))
    }

    fn put(&mut self, slice: &ResourceSlice, _now: Instant) -> Result<(), Error> {
        let (Some(name), Some(new)) = (slice.name(), Slice::of(slice)) else { return Ok(()) };
        let before = self.slices.get(name).map_or(0, |before| before.devices.len());
        let devices = self.devices - before + new.devices.len();
        if devices > MOST_DEVICES {
            return Err(Error::TooMany(MOST_DEVICES));
        }
        self.devices = devices;
        self.changed |= self.slices.get(name) != Some(&new);
        self.slices.insert(name.to_owned(), new);
        Ok(())
    }

    fn remove(&mut self, last: &ResourceSlice, _now: Instant) -> Result<(), Error> {
        if let Some(removed) = last.name().and_then(|name| self.slices.remove(name)) {
            self.devices -= removed.devices.len();
            self.changed = true;
        }
        Ok(())
    }

    fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    fn publish(&mut self, _followed: bool, changed: bool) {
        if changed {
            let pools = self.slices.values().map(|slice| (slice.driver.clone(), slice.pool.clone())).collect();
            let new = Slices { listed: self.listed, devices: self.shown(), pools };
            self.to.send_if_modified(|old| {
                let differs = **old != new;
                if differs {
                    *old = Arc::new(new);
                }
                differs
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A slice of the pool `node-1` with devices, each with a UUID that is its name.
    fn slice(name: &str, generation: i64, count: i64, devices: &[&str]) -> ResourceSlice {
        let device = |name: &&str| json!({"name": name, "attributes": {"uuid": {"string": name}}});
        let devices: Vec<_> = devices.iter().map(device).collect();
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
            "driver": "gpu.nvidia.com", "devices": devices,
            "pool": {"name": "node-1", "generation": generation, "resourceSliceCount": count},
        }}))
        .unwrap()
    }

    fn index() -> SliceIndex {
        SliceIndex::new(watch::channel(Arc::default()).0)
    }

    fn shown(index: &SliceIndex) -> Vec<String> {
        let mut names: Vec<_> = index.shown().into_keys().map(|(_, _, device)| device).collect();
        names.sort();
        names
    }

    #[test]
    fn only_the_newest_generation_counts_and_only_if_it_is_complete() {
        let (mut index, now) = (index(), Instant::now());
        index.replace(vec![slice("a", 1, 2, &["gpu-0"]), slice("b", 1, 2, &["gpu-1"])], now).unwrap();
        assert_eq!(shown(&index), ["gpu-0", "gpu-1"]);
        // The driver publishes the pool anew, one slice after the other.
        index.put(&slice("a", 2, 2, &["gpu-0", "gpu-2"]), now).unwrap();
        assert_eq!(shown(&index), [""; 0], "half of the new generation, and the old one counts no longer");
        index.put(&slice("c", 2, 2, &["gpu-3"]), now).unwrap();
        assert_eq!(shown(&index), ["gpu-0", "gpu-2", "gpu-3"]);
        index.remove(&slice("b", 1, 2, &[]), now).unwrap();
        assert_eq!(shown(&index), ["gpu-0", "gpu-2", "gpu-3"]);
        index.remove(&slice("c", 2, 2, &[]), now).unwrap();
        assert_eq!(shown(&index), [""; 0]);
    }

    #[test]
    fn a_name_of_two_devices_is_not_published() {
        let (mut index, now) = (index(), Instant::now());
        let other = |uuid: &str| -> ResourceSlice {
            let device = json!({"name": "gpu-0", "attributes": {"uuid": {"string": uuid}}});
            serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": {
                "driver": "gpu.nvidia.com", "devices": [device],
                "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 2},
            }}))
            .unwrap()
        };
        index.replace(vec![slice("a", 1, 2, &["gpu-0", "gpu-1"]), other("GPU-9")], now).unwrap();
        assert_eq!(shown(&index), ["gpu-1"]);
        index.put(&other("gpu-0"), now).unwrap();
        assert_eq!(shown(&index), ["gpu-0", "gpu-1"], "the same twice");
    }

    #[test]
    fn a_list_replaces_everything_and_the_number_of_devices_is_limited() {
        let (mut index, now) = (index(), Instant::now());
        index.replace(vec![slice("a", 1, 1, &["gpu-0"])], now).unwrap();
        assert!(index.take_change());
        index.put(&slice("a", 1, 1, &["gpu-0"]), now).unwrap();
        assert!(!index.take_change(), "nothing has changed");
        index.replace(vec![slice("b", 1, 1, &["gpu-1"])], now).unwrap();
        assert_eq!((shown(&index), index.devices), (vec!["gpu-1".to_owned()], 1));
        let names: Vec<_> = (0..1024).map(|n| format!("gpu-{n}")).collect();
        let many: Vec<_> = names.iter().map(String::as_str).collect();
        let full = (0..=64).try_for_each(|n| index.put(&slice(&format!("s{n}"), 1, 1, &many), now));
        assert!(matches!(full, Err(Error::TooMany(MOST_DEVICES))));
    }
}
