//! The families that the user chose with `metrics.include` and `metrics.exclude`.
//!
//! Invariant: which of the exporter's own families are left out is decided once, so a scrape compares no patterns.

use std::sync::Arc;

use glob::Pattern;

use super::family::Family;

/// The families to show: those that an `include` pattern names, or all if there is none, except those that an `exclude`
/// pattern names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    hidden: Hidden,
}

/// The names of the exporter's own families that are left out, sorted; `None` if there are none.
pub(super) type Hidden = Option<Arc<[&'static str]>>;

impl Selection {
    /// Creates the selection from patterns, whose syntax was checked with the configuration.
    /// `families` are all of the exporter's own families.
    pub fn new(include: &[String], exclude: &[String], families: impl Iterator<Item = &'static Family>) -> Self {
        let patterns = |texts: &[String]| texts.iter().filter_map(|text| Pattern::new(text).ok()).collect();
        let mut selection = Self { include: patterns(include), exclude: patterns(exclude), hidden: None };
        let mut hidden: Vec<_> = families.map(|family| family.name).filter(|name| !selection.shows(name)).collect();
        hidden.sort_unstable();
        selection.hidden = (!hidden.is_empty()).then(|| hidden.into());
        selection
    }

    /// Whether a family with this name is shown.
    pub fn shows(&self, name: &str) -> bool {
        let names = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.include.is_empty() || names(&self.include)) && !names(&self.exclude)
    }

    /// Whether one of the exporter's own families is shown.
    pub(super) fn shows_own(&self, family: &Family) -> bool {
        !is_hidden(&self.hidden, family.name)
    }

    /// The exporter's own families that are left out.
    pub fn left_out(&self) -> &[&'static str] {
        self.hidden.as_deref().unwrap_or_default()
    }

    pub(super) fn hidden(&self) -> Hidden {
        self.hidden.clone()
    }
}

/// Whether one of the exporter's own families is left out.
pub(super) fn is_hidden(hidden: &Hidden, name: &str) -> bool {
    hidden.as_deref().is_some_and(|hidden| hidden.binary_search(&name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::super::table::families;
    use super::*;

    fn selection(include: &[&str], exclude: &[&str]) -> Selection {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Selection::new(&owned(include), &owned(exclude), families())
    }

    #[test]
    fn include_then_exclude() {
        let some =
            ["gpu_up", "gpu_memory_used_bytes", "gpu_memory_free_bytes", "process_open_fds", "DCGM_FI_DEV_GPU_TEMP"];
        let shown = |include: &[&str], exclude: &[&str]| {
            let selection = selection(include, exclude);
            some.into_iter().filter(|name| selection.shows(name)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&[], &[]), some);
        assert_eq!(shown(&["gpu_up"], &[]), ["gpu_up"]);
        assert_eq!(shown(&[], &["gpu_*"]), ["process_open_fds", "DCGM_FI_DEV_GPU_TEMP"]);
        assert_eq!(shown(&["gpu_*"], &["*_free_*"]), ["gpu_up", "gpu_memory_used_bytes"]);
        assert_eq!(shown(&["gpu_u?", "[Dp]*"], &[]), ["gpu_up", "process_open_fds", "DCGM_FI_DEV_GPU_TEMP"]);
        assert_eq!(shown(&["gpu_up"], &["gpu_up"]), Vec::<&str>::new());
    }

    #[test]
    fn what_is_left_out_is_decided_once_for_every_family() {
        assert_eq!(Selection::default().left_out(), Vec::<&str>::new());
        assert_eq!(
            selection(&["*"], &[]),
            Selection { include: vec![Pattern::new("*").unwrap()], ..Selection::default() }
        );
        let selection = selection(&["gpu_*"], &["gpu_mig_*"]);
        for family in families() {
            let wanted = family.name.starts_with("gpu_") && !family.name.starts_with("gpu_mig_");
            assert_eq!(selection.shows_own(family), wanted, "{}", family.name);
            assert_eq!(selection.left_out().contains(&family.name), !wanted, "{}", family.name);
        }
    }
}
