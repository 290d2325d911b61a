//! One source of families: what they are, and how a pass over the snapshot writes them.

use std::time::SystemTime;

use super::exposition::Exposition;
use super::family::{Declares, Family};
use super::label_cache::LabelCache;
use super::own_process::OwnProcess;
use super::selection::Selection;
use super::settings::Settings;
use super::view::{GpuView, Parts};
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::Snapshot;

/// What the families of one pass are written from.
pub(super) struct Pass<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) parts: &'a Parts,
    pub(super) gpus: &'a [GpuView<'a>],
    pub(super) settings: &'a Settings,
    pub(super) faults: &'a Faults,
    pub(super) labels: &'a LabelCache,
    pub(super) own_process: &'a OwnProcess,
    /// When the counters of scrapes, of the lanes and of the feed were 0.
    pub(super) started: SystemTime,
}

/// Writes the families of one source, as far as the settings show them and their values are known.
pub(super) type Collect = fn(&Pass<'_>, &mut Exposition<'_>);

/// The families of one source.
pub(super) struct Section {
    /// The heading in the reference.
    pub(super) title: &'static str,
    /// What all families of the source have in common.
    pub(super) intro: &'static str,
    /// The families and tables, in the order of the reference.
    pub(super) families: &'static [&'static dyn Declares],
    pub(super) collect: Collect,
}

impl Section {
    /// The families of the source, in the order of the reference.
    pub(super) fn families(&self) -> impl Iterator<Item = &'static Family> {
        self.families.iter().flat_map(|declared| (0..).map_while(move |at| declared.family(at)))
    }

    /// Whether any family of the source is shown.
    pub(super) fn is_shown(&self, selection: &Selection) -> bool {
        self.families().any(|family| selection.shows_own(family))
    }
}
