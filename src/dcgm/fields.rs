//! The table of the DCGM fields that the snapshot can answer.
//!
//! Invariant: a field has the unit and the type that dcgm-exporter gives it. The names, numbers, types and levels are
//! those in `dcgm_fields.h` and `dcgm_fields.cpp` of DCGM 4.5.3 and 4.6.0; a field has the same number in both, so a
//! renamed field is the same value.

mod extra;
mod field;
mod listed;

use extra::EXTRA;
pub use field::Naming;
pub(super) use field::{Field, Level, Read, Reading, Share, mib, percent};
pub(super) use listed::LABEL;
use listed::LISTED;

use crate::metrics::Kind;

fn all() -> impl Iterator<Item = &'static Field> {
    LISTED.iter().chain(EXTRA)
}

/// The field with this name, in any version of DCGM.
pub(super) fn find(name: &str) -> Option<&'static Field> {
    all().find(|field| field.name == name || field.new_name == name)
}

/// The fields that are served without a collectors file.
pub(super) fn listed() -> impl Iterator<Item = (&'static Field, Kind, &'static str)> {
    all().filter_map(|field| field.listed.map(|(kind, help)| (field, kind, help)))
}

/// The names of every field that can be served, up to DCGM 4.5 and in DCGM 4.6.
pub fn served() -> impl Iterator<Item = (&'static str, &'static str)> {
    all().map(|field| (field.name, field.new_name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::field::{FB_USED, GPU_UTIL, XID_ERRORS};
    use super::*;

    #[test]
    fn a_name_means_one_field() {
        // The deprecated name of the reasons has the same new name.
        let fields = || all().filter(|field| field.name != "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS");
        let names: Vec<_> = fields().flat_map(|field| BTreeSet::from([field.name, field.new_name])).collect();
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len(), "{names:?}");
        assert!(all().all(|field| find(field.name).is_some_and(|found| std::ptr::eq(found, field))));
        assert!(find("DCGM_FI_DEV_GPU_UTIL_RATIO").is_some_and(|field| field.name == GPU_UTIL));
        assert!([FB_USED, GPU_UTIL, XID_ERRORS, LABEL].iter().all(|name| find(name).is_some()));
    }
}
