//! Which device an ordinal of a process is: `CUDA_VISIBLE_DEVICES` decides, and no call tells.
//!
//! Invariant: an ordinal is one device as long as the process lives, so one that seems to be two is none.

use std::collections::BTreeMap;

use super::places::DeviceNumber;

/// An ordinal is known to be a device if what it took since the last list is as much as the device grew by, and at least
/// this much.
const TELLING: u64 = 64 << 20;
/// By how much the two may differ: the driver rounds sizes up.
const ROUNDING: u64 = 8 << 20;

/// Bytes in allocations that are known to live, and what was taken since the last list of each device.
#[derive(Debug, Default, Clone)]
pub(super) struct Ordinal {
    pub(super) live: u64,
    /// By device: bytes taken minus given back since its last list.
    pub(super) since: BTreeMap<DeviceNumber, i64>,
    pub(super) device: Option<DeviceNumber>,
    /// Whether it has seemed to be two devices, so that it is not known.
    is_unclear: bool,
}

/// Learns which ordinal is a device that grew from one reading to the next, if only one can be.
pub(super) fn learn(ordinals: &mut BTreeMap<Option<i32>, Ordinal>, device: DeviceNumber, before: u64, now: u64) {
    let Some(grown) = now.checked_sub(before).filter(|grown| *grown >= TELLING) else { return };
    let taken = |ordinal: &Ordinal| ordinal.since.get(&device).copied().unwrap_or_default();
    let mut moved = ordinals.iter().filter(|(_, known)| taken(known) != 0);
    let (Some((&Some(only), known)), None) = (moved.next(), moved.next()) else { return };
    if !u64::try_from(taken(known)).is_ok_and(|taken| taken.abs_diff(grown) <= ROUNDING) {
        return;
    }
    let is_other = |known: &Ordinal| known.device.is_some_and(|other| other != device);
    let has_it = |name: Option<i32>, known: &Ordinal| name != Some(only) && known.device == Some(device);
    let contradicts = is_other(known) || ordinals.iter().any(|(name, known)| has_it(*name, known));
    for (name, known) in ordinals.iter_mut() {
        if contradicts && (*name == Some(only) || known.device == Some(device)) {
            (known.device, known.is_unclear) = (None, true);
        } else if *name == Some(only) && !known.is_unclear {
            known.device = Some(device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Ordinals with what each took since the last lists of devices 0 and 1; -1 stands for an unknown ordinal.
    fn took(bytes: &[(i32, u64)]) -> BTreeMap<Option<i32>, Ordinal> {
        let ordinal = |bytes: u64| {
            let bytes = i64::try_from(bytes).unwrap();
            Ordinal { since: [(0, bytes), (1, bytes)].into(), ..Ordinal::default() }
        };
        bytes.iter().map(|&(name, bytes)| (Some(name).filter(|name| *name >= 0), ordinal(bytes))).collect()
    }

    fn devices(ordinals: &BTreeMap<Option<i32>, Ordinal>) -> Vec<Option<DeviceNumber>> {
        ordinals.values().map(|ordinal| ordinal.device).collect()
    }

    #[test]
    fn an_ordinal_is_the_device_that_grew_if_only_it_can_be() {
        /// What the ordinals took, by how much device 1 grew, and which device each ordinal seems to be then.
        type Case<'a> = (&'a [(i32, u64)], u64, &'a [Option<usize>]);
        let cases: [Case<'_>; 6] = [
            (&[(0, 100 * MIB), (1, 0)], 102 * MIB, &[Some(1), None]),
            (&[(0, 100 * MIB), (1, 0)], 200 * MIB, &[None, None]),
            (&[(0, 60 * MIB), (1, 0)], 60 * MIB, &[None, None]),
            (&[(0, 100 * MIB), (1, 50 * MIB)], 100 * MIB, &[None, None]),
            (&[(-1, 100 * MIB), (1, 0)], 100 * MIB, &[None, None]),
            // What an unknown ordinal took may be what grew.
            (&[(-1, 100 * MIB), (0, 100 * MIB)], 100 * MIB, &[None, None]),
        ];
        for (taken, grown, expected) in cases {
            let mut ordinals = took(taken);
            learn(&mut ordinals, 1, 0, grown);
            assert_eq!(devices(&ordinals), expected, "{taken:?} {grown}");
        }
    }

    #[test]
    fn an_ordinal_that_seems_to_be_two_devices_is_none_from_then_on() {
        let mut ordinals = took(&[(0, 100 * MIB)]);
        learn(&mut ordinals, 0, 0, 100 * MIB);
        assert_eq!(devices(&ordinals), [Some(0)]);
        for device in [1, 0, 1] {
            learn(&mut ordinals, device, 0, 100 * MIB);
            assert_eq!(devices(&ordinals), [None]);
        }
        // Two ordinals cannot be one device.
        let mut ordinals = took(&[(0, 100 * MIB), (1, 0)]);
        learn(&mut ordinals, 0, 0, 100 * MIB);
        let both = took(&[(0, 0), (1, 100 * MIB)]);
        for (name, known) in both {
            ordinals.entry(name).and_modify(|ordinal| ordinal.since = known.since);
        }
        learn(&mut ordinals, 0, 0, 100 * MIB);
        assert_eq!(devices(&ordinals), [None, None]);
    }
}
