//! Which incident is given up when there are too many, in memory and on disk.
//!
//! Invariants: the newest incident is kept; an incident is given up for another of its own device and kind, or because
//! its tenant has the most. So no device, kind or tenant pushes out the incidents of another.

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// The maximum number of incidents of one device and kind.
    pub(crate) of_kind: usize,
    /// The maximum number of all incidents.
    pub(crate) count: usize,
    /// The maximum size of all incidents together, in bytes. The newest is kept even if it is larger.
    pub(crate) bytes: u64,
}

/// An incident that takes room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Its device and kind.
    pub(crate) group: String,
    /// Who caused it, or its device.
    pub(crate) tenant: String,
    /// Its size.
    pub(crate) bytes: u64,
}

/// The position of the incident to give up; `None` if there is room for all. `claims` are ordered oldest first.
pub(crate) fn surplus(claims: &[Claim], room: Room) -> Option<usize> {
    let (_, older) = claims.split_last()?;
    let crowded = |group: &str| claims.iter().filter(|claim| claim.group == group).count() > room.of_kind;
    if let Some(group) = older.iter().map(|claim| &claim.group).find(|group| crowded(group)) {
        return oldest_of_largest(claims, |claim| claim.group == *group, |_| 1);
    }
    let bytes = claims.iter().fold(0_u64, |sum, claim| sum.saturating_add(claim.bytes));
    if claims.len() <= room.count && bytes <= room.bytes {
        return None;
    }
    oldest_of_largest(claims, |_| true, |claim| claim.bytes)
}

/// The oldest incident of the tenant who has the most, among those that `counts` selects. The newest is never returned.
fn oldest_of_largest(
    claims: &[Claim],
    counts: impl Fn(&Claim) -> bool,
    weight: impl Fn(&Claim) -> u64,
) -> Option<usize> {
    let of_tenant = |tenant: &str| {
        let own = claims.iter().filter(|claim| counts(claim) && claim.tenant == tenant);
        own.map(&weight).fold(0_u64, u64::saturating_add)
    };
    let older = claims.len().saturating_sub(1);
    let candidates = claims[..older].iter().enumerate().filter(|(_, claim)| counts(claim));
    // Of several with the most, the first one, which is the oldest.
    candidates.min_by_key(|(_, claim)| std::cmp::Reverse(of_tenant(&claim.tenant))).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOM: Room = Room { of_kind: 3, count: 10, bytes: 1000 };

    fn claim(group: &str, tenant: &str, bytes: u64) -> Claim {
        Claim { group: group.to_owned(), tenant: tenant.to_owned(), bytes }
    }

    /// Adds the claims one after another, and gives up what is too much.
    fn kept(all: impl IntoIterator<Item = Claim>) -> Vec<Claim> {
        let mut kept: Vec<Claim> = Vec::new();
        for claim in all {
            kept.push(claim);
            while let Some(index) = surplus(&kept, ROOM) {
                kept.remove(index);
            }
        }
        kept
    }

    #[test]
    fn one_tenant_with_many_devices_pushes_out_his_own() {
        let lost = claim("GPU-9 gpu_lost", "device:GPU-9", 10);
        let flood = (0..500).map(|n| claim(&format!("MIG-{} near_limit", n % 20), "user:eve", 10));
        let kept = kept(std::iter::once(lost.clone()).chain(flood));
        assert_eq!((kept.len(), &kept[0]), (10, &lost));
    }

    #[test]
    fn on_a_shared_device_the_tenant_with_the_most_loses_his_oldest() {
        let other = claim("GPU-0 ended_at_peak", "user:ada", 1);
        let flood = (0..50).map(|_| claim("GPU-0 ended_at_peak", "user:eve", 400));
        let kept = kept(std::iter::once(other.clone()).chain(flood));
        assert_eq!(kept[0], other);
        assert!(kept.iter().map(|claim| claim.bytes).sum::<u64>() <= ROOM.bytes);
    }

    proptest! {
        #[test]
        fn the_room_holds_and_a_tenant_without_surplus_loses_nothing_to_a_flood(
            flood in prop::collection::vec((0..6_u8, 1..300_u64), 0..200)
        ) {
            let quiet = claim("GPU-9 gpu_lost", "device:GPU-9", 1);
            let flood = flood.iter().map(|(device, bytes)| claim(&format!("GPU-{device} near_limit"), "user:eve", *bytes));
            let all: Vec<_> = std::iter::once(quiet.clone()).chain(flood).collect();
            let newest = all.last().cloned();
            let kept = kept(all);
            prop_assert_eq!(kept.last(), newest.as_ref());
            prop_assert!(kept.contains(&quiet) && kept.len() <= ROOM.count);
            prop_assert!(kept.iter().map(|claim| claim.bytes).sum::<u64>() <= ROOM.bytes);
            for claim in &kept {
                prop_assert!(kept.iter().filter(|other| other.group == claim.group).count() <= ROOM.of_kind);
            }
        }
    }
}
