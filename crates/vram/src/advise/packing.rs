//! How many GPUs the workloads of the fleet would need, if they were packed by their memory.
//!
//! Invariants: the lower bound is never more than the number that first fit needs, for the same sizes; neither is more than the
//! number of GPUs that the workloads are on, because they fit there.

use std::collections::{BTreeMap, BTreeSet};

use super::devices::{Devices, GpuKey};
use super::history::History;
use super::record::{Board, Fleet};
use super::run_key::RunKey;

/// A run that has processes now.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item<'a> {
    /// Bytes.
    size: u64,
    /// Runs of one workload (`kind`, `workload`) are on different GPUs.
    workload: (&'a str, &'a str),
    device: (&'a str, Option<&'a str>),
}

/// The items of one kind of GPU in a cluster.
#[derive(Debug, Default)]
struct Shelf<'a> {
    gpus: BTreeSet<&'a str>,
    items: Vec<Item<'a>>,
    without_advice: u64,
}

/// The fleet's current workloads. `advice` is that for the group of a run; the second value is the number of runs whose GPU is
/// not known.
pub(super) fn fleet(
    history: &History,
    devices: &Devices,
    freed: u64,
    advice: impl Fn(&RunKey) -> Option<u64>,
) -> (Fleet, u64) {
    let mut unknown = 0;
    let mut shelves: BTreeMap<(Option<&str>, &str), Shelf<'_>> = BTreeMap::new();
    for (key, run) in history.runs.iter().filter(|(_, run)| run.is_now) {
        let Some((name, allocatable)) = board(devices, &key.gpu()) else {
            unknown += 1;
            continue;
        };
        let shelf = shelves.entry((key.cluster.as_deref(), name)).or_default();
        let advised = advice(key);
        shelf.gpus.insert(&key.uuid);
        shelf.without_advice += u64::from(advised.is_none());
        shelf.items.push(Item {
            size: advised.unwrap_or(run.driver_peak).min(allocatable),
            workload: (&key.kind, &key.workload),
            device: (&key.uuid, key.mig_uuid.as_deref()),
        });
    }
    let boards: Vec<Board> = shelves
        .into_iter()
        .filter_map(|((cluster, name), shelf)| pack(cluster, name, smallest(devices, cluster, name)?, shelf))
        .collect();
    let sum = |of: fn(&Board) -> u64| boards.iter().map(of).sum();
    let fleet = Fleet {
        freed_bytes: freed,
        gpus_now: sum(|board| board.gpus_now),
        gpus_first_fit: sum(|board| board.gpus_first_fit),
        gpus_lower_bound: sum(|board| board.gpus_lower_bound),
        boards,
    };
    (fleet, unknown)
}

/// The name of a GPU's board, and what can be allocated on the smallest GPU of this name in its cluster.
fn board<'a>(devices: &'a Devices, key: &GpuKey) -> Option<(&'a str, u64)> {
    let name = devices.gpus.get(key)?.name.as_deref()?;
    Some((name, smallest(devices, key.0.as_deref(), name)?))
}

fn smallest(devices: &Devices, cluster: Option<&str>, name: &str) -> Option<u64> {
    let of_it =
        devices.gpus.iter().filter(|(key, gpu)| key.0.as_deref() == cluster && gpu.name.as_deref() == Some(name));
    of_it.filter_map(|(_, gpu)| Some(gpu.memory?.allocatable())).min().filter(|allocatable| *allocatable > 0)
}

fn pack(cluster: Option<&str>, name: &str, allocatable: u64, mut shelf: Shelf<'_>) -> Option<Board> {
    shelf.items.sort_unstable_by(|a, b| b.size.cmp(&a.size).then_with(|| (a.workload.1, a).cmp(&(b.workload.1, b))));
    let bytes: u128 = shelf.items.iter().map(|item| u128::from(item.size)).sum();
    let mut of_workload: BTreeMap<_, u64> = BTreeMap::new();
    for item in &shelf.items {
        *of_workload.entry(item.workload).or_default() += 1;
    }
    let most = of_workload.values().copied().max().unwrap_or(0);
    let gpus_now = shelf.gpus.len() as u64;
    let by_size = u64::try_from(bytes.div_ceil(allocatable.into())).ok()?;
    Some(Board {
        cluster: cluster.map(str::to_owned),
        board: name.to_owned(),
        allocatable_bytes: allocatable,
        gpus_now,
        runs_now: shelf.items.len() as u64,
        runs_without_advice: shelf.without_advice,
        // Advice has a margin. Without it, the GPUs of now are enough: they hold the workloads.
        gpus_lower_bound: by_size.max(most).min(gpus_now),
        gpus_first_fit: first_fit(&shelf.items, allocatable).min(gpus_now),
    })
}

/// The number of GPUs that are used if each item is put on the first one that has room for it.
fn first_fit(items: &[Item<'_>], allocatable: u64) -> u64 {
    let mut gpus: Vec<(u64, BTreeSet<(&str, &str)>)> = Vec::new();
    for item in items {
        let room = gpus.iter_mut().find(|(free, on)| *free >= item.size && !on.contains(&item.workload));
        match room {
            Some((free, on)) => {
                *free -= item.size;
                on.insert(item.workload);
            }
            None => gpus.push((allocatable - item.size, BTreeSet::from([item.workload]))),
        }
    }
    gpus.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf<'a>(items: &[(u64, &'a str, &'a str)]) -> Shelf<'a> {
        let item = |&(size, workload, uuid)| Item { size, workload: ("slurm", workload), device: (uuid, None) };
        Shelf {
            gpus: items.iter().map(|(.., uuid)| *uuid).collect(),
            items: items.iter().map(item).collect(),
            without_advice: 0,
        }
    }

    fn packed(items: &[(u64, &str, &str)]) -> (u64, u64, u64) {
        let board = pack(None, "H200", 100, shelf(items)).unwrap();
        assert!(board.gpus_lower_bound <= board.gpus_first_fit);
        (board.gpus_now, board.gpus_lower_bound, board.gpus_first_fit)
    }

    #[test]
    fn workloads_share_gpus_by_their_size() {
        assert_eq!(packed(&[(50, "a", "1"), (50, "b", "2"), (100, "c", "3"), (1, "d", "4")]), (4, 3, 3));
        // Three of 40 do not fit on one GPU, although their sum is less than two.
        assert_eq!(packed(&[(60, "a", "1"), (60, "b", "2"), (60, "c", "3")]), (3, 2, 3));
        // Several workloads on one GPU now.
        assert_eq!(packed(&[(20, "a", "1"), (20, "b", "1")]), (1, 1, 1));
        assert_eq!(packed(&[(0, "a", "1")]), (1, 1, 1));
        // With the margin they do not fit, but they are there.
        assert_eq!(packed(&[(55, "a", "1"), (55, "b", "1")]), (1, 1, 1));
    }

    #[test]
    fn the_parts_of_a_workload_stay_on_different_gpus() {
        assert_eq!(packed(&[(10, "a", "1"), (10, "a", "2"), (10, "b", "3")]), (3, 2, 2));
    }
}
