//! The GPUs and MIG instances of a scrape, each with its labels and what its fields are read from.
//!
//! Invariant: a device has the labels that dcgm-exporter gives it. A GPU with MIG instances is shown as its instances; the
//! GPU itself has only the fields that the snapshot does not hold for an instance.

use super::collectors::Column;
use super::fields::{Field, Level, Read, Reading, Share};
use super::holders::{self, Holder, Use};
use crate::config::DcgmNames;
use crate::snapshot::MigDevice;
use gpu_metrics::{GpuView, Labels, Parts, Settings};

/// What the series of every device depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format<'f> {
    /// When a value is too old, and which processes the exporter sees.
    pub(super) metrics: &'f Settings,
    /// The names of labels.
    pub(super) naming: DcgmNames,
    /// The machine's name.
    pub(super) hostname: Option<&'f str>,
    /// The fields that are served, of which some are labels.
    pub(super) columns: &'f [Column],
    /// Whether each container that shares a device has a series of its own.
    pub(super) virtual_gpus: bool,
}

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// A GPU without MIG instances.
    Gpu,
    /// A MIG instance.
    Instance,
    /// A GPU that is shown as its instances.
    Divided,
}

/// A device.
#[derive(Debug)]
pub(super) struct Device<'a> {
    reading: Reading<'a>,
    extent: Extent,
    /// The labels that all its series have.
    labels: String,
    /// The series without a container.
    bare: Row,
    /// One for each container that is shown.
    rows: Vec<Row>,
    /// Whether each container has its own values, if a field has such values.
    shared: bool,
}

/// The labels of a series after those of its device, each with a comma before it.
#[derive(Debug, Default)]
struct Row {
    labels: String,
    /// The labels of a series whose value is an Xid.
    with_xid: String,
    /// The labels of a series for an Xid, and how often it has occurred.
    xid_totals: Vec<(String, f64)>,
    /// What the container uses of the device.
    used: Use,
}

impl Row {
    fn new(holder: Option<&Holder<'_>>, reading: &Reading<'_>, used: Use) -> Self {
        // A GPU instance may have several devices.
        let claimed_mig = holder.and_then(|holder| reading.driver.find(&holder.claim?.device)?.1);
        let labels = |last: Option<u64>, of: Option<u64>| {
            let container = holder.map(|holder| holder.container);
            // In the order of the alphabet, as dcgm-exporter writes them.
            let labels = Labels::default().with_room(5).and_known("container", container.map(|c| c.container.as_str()));
            let labels = match holder.and_then(|holder| holder.claim) {
                Some(claimed) => labels
                    .and("dra_claim_name", &claimed.claim.name)
                    .and("dra_claim_namespace", &claimed.claim.namespace)
                    .and("dra_device_name", &claimed.name.device)
                    .and("dra_driver_name", &claimed.name.driver)
                    .and_known("dra_mig_device_uuid", claimed_mig.map(|mig| mig.uuid.as_str()))
                    .and_known("dra_mig_profile", claimed_mig.and_then(|mig| mig.profile.as_deref()))
                    .and("dra_pool_name", &claimed.name.pool),
                None => labels,
            };
            let labels = if let Some(xid) = last { labels.and_number("err_code", xid) } else { labels };
            let labels = labels
                .and_known("namespace", container.map(|c| c.namespace.as_str()))
                .and_known("pod", container.map(|c| c.pod.as_str()))
                .and_known("vgpu", holder.and_then(|holder| holder.replica));
            let labels = if let Some(xid) = of { labels.and_number("xid", xid) } else { labels };
            if labels.as_str().is_empty() { String::new() } else { format!(",{}", labels.as_str()) }
        };
        let totals = reading.xid_errors.into_iter().flatten();
        let xid_totals = totals.map(|(&xid, &count)| (labels(None, Some(xid)), count as f64)).collect();
        Self { labels: labels(None, None), with_xid: labels(reading.xid, None), xid_totals, used }
    }
}

impl Device<'_> {
    /// The series of a field: the labels in two parts, and the value.
    pub(super) fn series<'s>(&'s self, field: &'s Field) -> impl Iterator<Item = ([&'s str; 2], f64)> {
        let value = self.value(field);
        let share = field.share.filter(|_| self.shared);
        let bare = (self.rows.is_empty() || share.is_some()).then_some((&self.bare, value));
        let rows = self.rows.iter().map(move |row| (row, share.map_or(value, |share| self.own_value(row.used, share))));
        let known = bare.into_iter().chain(rows).filter_map(|(row, value)| Some((row, value?)));
        let values = known.map(|(row, value)| (if field.is_xid() { &row.with_xid } else { &row.labels }, value));
        let counts = matches!(field.read, Read::XidTotals) && self.shows(field);
        let bare = self.rows.is_empty().then_some(&self.bare);
        let counted = bare.into_iter().chain(&self.rows).filter(move |_| counts);
        let totals = counted.flat_map(|row| row.xid_totals.iter().map(|(labels, count)| (labels, *count)));
        values.chain(totals).map(|(labels, value)| ([self.labels.as_str(), labels.as_str()], value))
    }

    /// The value that a container has of its own, in the unit of the field.
    fn own_value(&self, used: Use, share: Share) -> Option<f64> {
        match share {
            // A GPU that shares the memory of the machine has no frame buffer.
            Share::Memory(unit) => used.memory.filter(|_| self.reading.gpu.unified_memory.is_none()).map(unit),
            Share::Utilization(unit) => used.utilization.map(unit),
        }
    }

    fn shows(&self, field: &Field) -> bool {
        match self.extent {
            Extent::Gpu => true,
            Extent::Instance => field.level != Level::WholeGpu,
            Extent::Divided => field.level == Level::WholeGpu,
        }
    }

    fn value(&self, field: &Field) -> Option<f64> {
        if self.shows(field) { field.read.number(&self.reading) } else { None }
    }
}

/// The devices of a GPU.
pub(super) fn of<'a>(parts: &'a Parts, view: &'a GpuView<'a>, format: Format<'_>) -> Vec<Device<'a>> {
    // A GPU that shares the memory of the machine has no frame buffer: DCGM has no value for it either.
    let own = view.memory.filter(|_| view.gpu.unified_memory.is_none());
    let memory = own.and_then(|memory| memory.figures.as_ref());
    let whole = Reading {
        driver: &parts.driver,
        gpu: view.gpu,
        memory,
        fast: view.fast,
        slow: view.slow,
        profiling: view.profiling.map(|figures| &figures.latest),
        whole_profiling: view.profiling.map(|figures| &figures.latest),
        xid_errors: view.xid_errors,
        xid: view.xid_errors.map(|_| view.last_xid.unwrap_or(0)),
    };
    let mut instances: Vec<&MigDevice> = Vec::new();
    for mig in &view.gpu.mig {
        // The compute instances of a GPU instance share its memory.
        if instances.iter().all(|known| known.gpu_instance != mig.gpu_instance) {
            instances.push(mig);
        }
    }
    let mut devices = Vec::with_capacity(instances.len() + 1);
    if instances.is_empty() {
        devices.push(device(parts, view, None, whole, Extent::Gpu, format));
        return devices;
    }
    for mig in instances {
        let memory = view.mig().find(|known| known.device.uuid == mig.uuid).and_then(|known| known.figures.as_ref());
        let own = view.mig_profiling.iter().find(|known| known.device.gpu_instance == mig.gpu_instance);
        let profiling = own.map(|own| &own.figures.latest);
        devices.push(device(parts, view, Some(mig), Reading { memory, profiling, ..whole }, Extent::Instance, format));
    }
    devices.push(device(parts, view, None, whole, Extent::Divided, format));
    devices
}

fn device<'a>(
    parts: &'a Parts,
    view: &'a GpuView<'a>,
    mig: Option<&MigDevice>,
    reading: Reading<'a>,
    extent: Extent,
    format: Format<'_>,
) -> Device<'a> {
    let instance = mig.map(|mig| mig.gpu_instance);
    let holders = holders::holders(parts, view, instance, format.metrics);
    // The value of a whole device is not that of one of several containers.
    let shown = if format.virtual_gpus || holders.len() == 1 { &holders[..] } else { &[] };
    let row = |holder: &Holder<'a>| {
        let used = if format.virtual_gpus {
            holders::used_by(holder.container, view, instance, format.metrics)
        } else {
            Use::default()
        };
        // The number of the share, like the container's own values, is part of the view of virtual GPUs.
        let holder = Holder { replica: holder.replica.filter(|_| format.virtual_gpus), ..*holder };
        Row::new(Some(&holder), &reading, used)
    };
    Device {
        reading,
        extent,
        labels: labels(&reading, mig, format),
        bare: Row::new(None, &reading, Use::default()),
        rows: shown.iter().map(row).collect(),
        shared: format.virtual_gpus,
    }
}

/// The labels that all series of a device have.
fn labels(reading: &Reading<'_>, mig: Option<&MigDevice>, format: Format<'_>) -> String {
    let gpu = reading.gpu;
    let labels = Labels::default()
        .with_room(11)
        .and_number("gpu", gpu.index)
        .and("UUID", &gpu.uuid)
        .and_known("pci_bus_id", gpu.pci_bus_id.as_deref())
        .and("device", &format!("nvidia{}", gpu.index))
        .and_known("modelName", gpu.name.as_deref());
    let labels = match mig {
        Some(mig) => labels
            .and_known("GPU_I_PROFILE", mig.profile.as_deref().map(profile_of_the_instance))
            .and_number("GPU_I_ID", mig.gpu_instance),
        None => labels,
    };
    let hostnames = format.naming.hostname_labels().iter();
    let labels = hostnames.fold(labels, |labels, label| labels.and_known(label, format.hostname));
    let texts = format
        .columns
        .iter()
        .filter(|column| column.kind.is_none())
        .filter_map(|column| Some((column.name.as_str(), column.field.read.text(reading)?)));
    texts.fold(labels, |labels, (name, text)| labels.and(name, &text)).as_str().to_owned()
}

/// The profile of the GPU instance: that of a compute instance, such as `1c.3g.40gb`, has one part more.
fn profile_of_the_instance(profile: &str) -> &str {
    match profile.split_once('.') {
        Some((slices, rest)) if slices.ends_with('c') => rest,
        _ => profile,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_that_of_the_gpu_instance() {
        assert_eq!(profile_of_the_instance("3g.40gb"), "3g.40gb");
        assert_eq!(profile_of_the_instance("1c.3g.40gb"), "3g.40gb");
        assert_eq!(profile_of_the_instance("1g.10gb+me"), "1g.10gb+me");
    }
}
