//! The totals of every GPU and GPU instance since the exporter started. They outlive sessions and threads.

use std::collections::HashMap;

use crate::snapshot::{Gpu, ProfilingFigures, ProfilingValues};

/// The prefix of the UUID of a MIG device.
const MIG: &str = "MIG-";

/// The totals, keyed by [`Gpu::key`] or by the UUID of the first MIG device of a GPU instance.
#[derive(Debug, Default)]
pub(crate) struct Totals(HashMap<String, ProfilingFigures>);

impl Totals {
    /// The figures of a GPU or GPU instance without those of the last interval; `None` if there are no totals.
    pub(super) fn of(&self, key: &str) -> Option<ProfilingFigures> {
        self.0.get(key).map(|kept| ProfilingFigures { latest: ProfilingValues::default(), ..*kept })
    }

    /// Keeps the totals of a GPU or GPU instance. Allocates only the first time.
    pub(super) fn keep(&mut self, key: &str, figures: &ProfilingFigures) {
        match self.0.get_mut(key) {
            Some(kept) => *kept = *figures,
            None => {
                self.0.insert(key.to_owned(), *figures);
            }
        }
    }

    /// Removes the totals of GPU instances that these GPUs do not have. Call it only if the MIG layout of every GPU
    /// is known.
    pub(super) fn forget_removed_instances(&mut self, gpus: &[&Gpu]) {
        let is_present = |key: &str| gpus.iter().any(|gpu| gpu.mig.iter().any(|device| device.uuid == key));
        self.0.retain(|key, _| !key.starts_with(MIG) || is_present(key));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::snapshot::{MigDevice, ProfilingMetric};

    #[test]
    fn totals_of_removed_instances_are_forgotten_and_those_of_missing_gpus_are_kept() {
        let mut values = ProfilingValues::default();
        values.set(ProfilingMetric::Sm, Some(7.0));
        let counted_since = Some(std::time::UNIX_EPOCH);
        let figures = ProfilingFigures { counted_since, totals: values, ..ProfilingFigures::default() };
        let mut totals = Totals::default();
        ["GPU-gone", "MIG-a", "MIG-b"].iter().for_each(|key| totals.keep(key, &figures));
        let device = Arc::new(MigDevice { uuid: "MIG-a".to_owned(), ..MigDevice::default() });
        let gpu = Gpu { mig: vec![device], ..Gpu::default() };
        totals.forget_removed_instances(&[&gpu]);
        assert_eq!((totals.of("MIG-a"), totals.of("GPU-gone")), (Some(figures), Some(figures)), "a GPU may come back");
        assert_eq!(totals.of("MIG-b"), None);
    }
}
