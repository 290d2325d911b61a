//! What one framework in a process reported about one device.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::limits;
use super::message::{Change, Look, Named, Report};
use super::outcome::Outcome;
use crate::faults::Reason;
use crate::peaks::Peaks;
use crate::snapshot::{
    AllocatorFigures, AllocatorReport, AllocatorSites, LastMessage, MemoryRole, Module, ProcessId, RESERVED_MARGIN,
    RegionPeak, Site, SiteGrowth,
};

/// The values of one device and one framework.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) device: Arc<str>,
    pub(super) framework: Arc<str>,
    /// The figures as reported; the window peak is added when they are shown.
    figures: AllocatorFigures,
    /// The peaks of the allocated memory.
    peaks: Peaks,
    /// Bytes: the highest reserved memory that is known.
    reserved_peak: Option<u64>,
    /// Sorted by name.
    regions: Vec<RegionPeak>,
    sites: Option<Arc<AllocatorSites>>,
    /// The call sites that were ever named, as hashes: each is a series of its own where the metrics are stored.
    named: HashSet<u64>,
    hasher: RandomState,
}

impl Values {
    /// Creates values that are all still unknown.
    pub(super) fn new(device: &str, framework: &str, window: Duration) -> Self {
        let (device, framework) = (Arc::from(device), Arc::from(framework));
        Self {
            device,
            framework,
            figures: AllocatorFigures::default(),
            peaks: Peaks::new(window),
            reserved_peak: None,
            regions: Vec::new(),
            sites: None,
            named: HashSet::new(),
            hasher: RandomState::new(),
        }
    }

    /// Applies the values of a report.
    ///
    /// # Errors
    /// When the values contradict each other. In that case, nothing is changed.
    pub(super) fn apply(&mut self, report: &Report<'_>, now: Instant) -> Result<(), Reason> {
        let before = self.figures;
        let figures = AllocatorFigures {
            allocated: report.allocated_bytes.unwrap_or(before.allocated),
            reserved: report.reserved_bytes.unwrap_or(before.reserved),
            window_peak: None,
            peak: report.peak_bytes.unwrap_or(before.peak),
            limit: report.limit_bytes.unwrap_or(before.limit),
            largest_free_block: report.largest_free_block_bytes.unwrap_or(before.largest_free_block),
            inactive_split: report.inactive_split_bytes.unwrap_or(before.inactive_split),
            retries: report.retries.unwrap_or(before.retries),
            out_of_memory: report.out_of_memory.unwrap_or(before.out_of_memory),
        };
        let is_below = |lower: Change, bound: Option<u64>| lower.flatten().zip(bound).is_some_and(|(l, b)| l < b);
        let contradicts = is_below(Some(figures.reserved), figures.allocated)
            || is_below(report.high_bytes, figures.allocated)
            || is_below(report.peak_bytes, figures.allocated)
            || is_below(report.peak_reserved_bytes, figures.reserved)
            || is_below(report.retries, before.retries)
            || is_below(report.out_of_memory, before.out_of_memory);
        if contradicts {
            return Err(Reason::Inconsistent);
        }
        self.figures = figures;
        self.reserved_peak = self.reserved_peak.max(figures.reserved).max(report.peak_reserved_bytes.flatten());
        if let Some(high) = report.high_bytes.flatten().max(figures.allocated) {
            self.peaks.see(high, now);
        }
        if let Some(peak) = figures.peak {
            // A peak that becomes smaller or unknown does not lower the known peak.
            self.peaks.raise(peak);
        }
        Ok(())
    }

    /// Replaces what the memory is. What grew before and the modules of the look before are dropped.
    ///
    /// # Errors
    /// When it is more than the allocator may have. In that case, nothing is changed.
    pub(super) fn look(&mut self, looked: &Look<'_>, now: Instant) -> Result<(), Reason> {
        let (mut sites, mut other): (Vec<Site>, Option<u64>) = (Vec::new(), looked.other_bytes);
        for reported in &looked.sites {
            let new = site(reported);
            let hash = self.hasher.hash_one((&new.site, new.role));
            if self.named.len() >= limits::SITES && !self.named.contains(&hash) {
                other = Some(other.unwrap_or(0).saturating_add(new.bytes));
                continue;
            }
            self.named.insert(hash);
            match sites.iter_mut().find(|known| known.site == new.site && known.role == new.role) {
                Some(known) => known.bytes = known.bytes.saturating_add(new.bytes),
                None => sites.push(new),
            }
        }
        let looked = AllocatorSites {
            at: now,
            roles: looked.roles.0,
            sites,
            other,
            unrecorded: looked.unknown_bytes,
            growth: None,
            modules: Vec::new(),
            other_modules: None,
        };
        let roles = looked.roles().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(bytes));
        self.may_hold(roles.max(looked.total()))?;
        self.sites = Some(Arc::new(looked));
        Ok(())
    }

    /// Adds to the last look what grew before it.
    ///
    /// # Errors
    /// When there was no look, or the growth is more than the allocator may have. In that case, nothing is changed.
    pub(super) fn grow(&mut self, growth: &Look<'_>) -> Result<(), Reason> {
        self.may_hold(growth.sites.iter().map(|site| site.bytes).fold(0, u64::saturating_add))?;
        let mut sites: Vec<Site> = growth.sites.iter().map(site).collect();
        sites.sort_by_key(|site| Reverse(site.bytes));
        self.last_look()?.growth = growth.seconds.map(|seconds| SiteGrowth { seconds, sites });
        Ok(())
    }

    /// Adds to the last look which modules the memory belongs to.
    ///
    /// # Errors
    /// When there was no look, or it is more than the allocator may have. In that case, nothing is changed.
    pub(super) fn divide(&mut self, divided: &Look<'_>) -> Result<(), Reason> {
        let all = divided.modules.iter().map(|module| module.bytes).chain(divided.other_bytes);
        self.may_hold(all.fold(0, u64::saturating_add))?;
        let of = |Named { site, bytes, .. }: &Named<'_>| Module { module: Arc::from(&**site), bytes: *bytes };
        let mut modules: Vec<Module> = divided.modules.iter().map(of).collect();
        modules.sort_by_key(|module| Reverse(module.bytes));
        let look = self.last_look()?;
        (look.modules, look.other_modules) = (modules, divided.other_bytes);
        Ok(())
    }

    /// Whether the allocator may have this many bytes. A look and the report before it are of two moments.
    fn may_hold(&self, bytes: u64) -> Result<(), Reason> {
        let most = self.figures.reserved.map(|reserved| reserved.saturating_add(RESERVED_MARGIN));
        if most.is_some_and(|most| bytes > most) { Err(Reason::Inconsistent) } else { Ok(()) }
    }

    fn last_look(&mut self) -> Result<&mut AllocatorSites, Reason> {
        self.sites.as_mut().map(Arc::make_mut).ok_or(Reason::Inconsistent)
    }

    /// Whether what the memory is was ever reported.
    pub(super) fn has_looked(&self) -> bool {
        self.sites.is_some()
    }

    /// What the memory was at the last look, unless that is too long ago.
    pub(super) fn sites(&self, now: Instant) -> Option<Arc<AllocatorSites>> {
        self.sites.clone().filter(|sites| !sites.is_old(now))
    }

    /// Raises the peak of a known region. Returns whether the region is known.
    pub(super) fn raise_region(&mut self, name: &str, peak: u64) -> bool {
        let known = self.regions.iter_mut().find(|region| &*region.name == name);
        let Some(region) = known else { return false };
        region.peak = region.peak.max(peak);
        true
    }

    /// Adds a region that is not known yet.
    pub(super) fn add_region(&mut self, name: Arc<str>, peak: u64) {
        let at = self.regions.partition_point(|region| region.name < name);
        self.regions.insert(at, RegionPeak { name, peak });
    }

    /// Bytes: the highest allocated memory that is known.
    fn allocated_peak(&self) -> Option<u64> {
        Some(self.peaks.highest()).filter(|&peak| peak > 0 || self.figures.allocated.is_some())
    }

    /// The outcome when the connection ends; `None` if only regions were reported.
    pub(super) fn outcome(&self, process: ProcessId) -> Option<Outcome> {
        let AllocatorFigures { retries, out_of_memory, .. } = self.figures;
        let (allocated_peak, reserved_peak) = (self.allocated_peak(), self.reserved_peak);
        let is_known = [allocated_peak, reserved_peak, retries, out_of_memory].iter().any(Option::is_some);
        is_known.then(|| Outcome {
            process,
            device: self.device.clone(),
            framework: self.framework.clone(),
            allocated_peak,
            reserved_peak,
            retries,
            out_of_memory,
        })
    }

    /// The values as they are shown now; `None` if there are none.
    pub(super) fn shown(&mut self, heard: &Arc<LastMessage>, now: Instant) -> Option<AllocatorReport> {
        // A value that has not changed is still in use.
        if let Some(allocated) = self.figures.allocated {
            self.peaks.see(allocated, now);
        }
        let figures = AllocatorFigures {
            window_peak: self.peaks.within_window(now),
            peak: self.allocated_peak(),
            ..self.figures
        };
        let sites = self.sites(now);
        if figures == AllocatorFigures::default() && self.regions.is_empty() && sites.is_none() {
            return None;
        }
        Some(AllocatorReport {
            device: self.device.clone(),
            framework: self.framework.clone(),
            heard: heard.clone(),
            figures,
            regions: self.regions.clone(),
            sites,
        })
    }
}

fn site(Named { site, role, bytes }: &Named<'_>) -> Site {
    Site { site: Arc::from(&**site), role: MemoryRole::of(role.as_deref().unwrap_or_default()), bytes: *bytes }
}
