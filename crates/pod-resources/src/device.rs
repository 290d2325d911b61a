//! Reads the ids that device plugins give to NVIDIA GPUs: which GPU or MIG device is meant, and which share of it.
//!
//! Invariant: an ambiguous id is not used. A full UUID has one meaning, whichever plugin gives it; a bare number can
//! mean anything, so it counts only for resources with a name that NVIDIA's plugin gives.

/// The longest id that is read, in bytes.
const LONGEST_ID: usize = 256;
/// The longest name of a resource, in bytes: a domain of 253, a slash and a name of 63.
const LONGEST_RESOURCE: usize = 317;

/// A device as the kubelet lists it: a GPU, a MIG device, or a share of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// The resource's name, such as `nvidia.com/gpu`.
    pub resource: String,
    /// Which GPU or MIG device it is.
    pub device: DeviceName,
    /// Which share of it, under time-slicing or MPS; `None` for a whole device.
    pub replica: Option<String>,
}

/// How a device plugin names a GPU or a MIG device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceName {
    /// A GPU's UUID, `GPU-…`.
    Gpu(String),
    /// A MIG device's UUID, `MIG-…`.
    Mig(String),
    /// The number of the device file `/dev/nvidia<minor>`, and a GPU instance on that GPU.
    Minor {
        /// The number of the device file.
        minor: u32,
        /// The GPU instance's id, under MIG.
        gpu_instance: Option<u32>,
    },
    /// NVML's index, and the index of a MIG device on it.
    Index {
        /// The GPU's index.
        gpu: u32,
        /// The MIG device's index on the GPU.
        mig: Option<u32>,
    },
    /// A GPU's UUID with the ids of a GPU instance and a compute instance, as drivers before 470 named MIG devices.
    Instance {
        /// The GPU's UUID, `GPU-…`.
        gpu: String,
        /// The GPU instance's id.
        gpu_instance: u32,
        /// The compute instance's id.
        compute_instance: u32,
    },
}

impl Device {
    /// Reads a device's id. `None` for a device that is not known to be an NVIDIA GPU, or whose id does not
    /// identify the GPU.
    ///
    /// The ids of HAMi and Volcano (`GPU-<uuid>-<n>`) and of gpushare (`GPU-<uuid>-_-<n>`) do not identify
    /// the allocated GPU, because with these plugins a scheduler picks the GPU. The device that the kubelet picks is
    /// used only for counting, and may be a different one.
    pub fn read(resource: &str, id: &str) -> Option<Self> {
        if resource.is_empty() || resource.len() > LONGEST_RESOURCE || id.len() > LONGEST_ID {
            return None;
        }
        let own = resource.strip_prefix("nvidia.com/");
        let (device, replica) = match id.split_once("::") {
            Some((device, replica)) => (device, Some(number(replica)?)),
            None => (id, None),
        };
        let (device, replica) = match (by_uuid(device), own) {
            (Some(device), _) => (device, replica),
            (None, Some(_)) if device.starts_with("nvidia") && replica.is_none() => by_file(device)?,
            (None, Some(name)) if is_plugin_name(name) => (by_index(device)?, replica),
            _ => return None,
        };
        Some(Self { resource: resource.to_owned(), device, replica: replica.map(|replica| replica.to_string()) })
    }
}

/// `GPU-<uuid>`, `MIG-<uuid>`, `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`.
fn by_uuid(id: &str) -> Option<DeviceName> {
    if let Some(old) = id.strip_prefix("MIG-").filter(|rest| rest.starts_with("GPU-")) {
        let (gpu, instances) = old.split_once('/')?;
        let (gpu_instance, compute_instance) = instances.split_once('/')?;
        uuid(gpu.strip_prefix("GPU-")?)?;
        return Some(DeviceName::Instance {
            gpu: gpu.to_owned(),
            gpu_instance: number(gpu_instance)?,
            compute_instance: number(compute_instance)?,
        });
    }
    let (kind, rest) = id.split_at_checked(4)?;
    uuid(rest)?;
    match kind {
        "GPU-" => Some(DeviceName::Gpu(id.to_owned())),
        "MIG-" => Some(DeviceName::Mig(id.to_owned())),
        _ => None,
    }
}

/// `nvidia<minor>`, `nvidia<minor>/gi<GPU instance>`, and either with `/vgpu<share>`.
fn by_file(id: &str) -> Option<(DeviceName, Option<u32>)> {
    let mut parts = id.strip_prefix("nvidia")?.split('/').peekable();
    let minor = number(parts.next()?)?;
    let mut part = |prefix| match parts.peek().and_then(|part| part.strip_prefix(prefix)) {
        Some(digits) => {
            parts.next();
            number(digits).map(Some)
        }
        None => Some(None),
    };
    let gpu_instance = part("gi")?;
    let replica = part("vgpu")?;
    parts.next().is_none().then_some((DeviceName::Minor { minor, gpu_instance }, replica))
}

/// `<GPU>`, `<GPU>:<MIG device>`.
fn by_index(id: &str) -> Option<DeviceName> {
    let (gpu, mig) = match id.split_once(':') {
        Some((gpu, mig)) => (gpu, Some(number(mig)?)),
        None => (id, None),
    };
    Some(DeviceName::Index { gpu: number(gpu)?, mig })
}

/// Whether `name`, after `nvidia.com/`, is one that NVIDIA's GPU plugin gives to resources. NVIDIA's KubeVirt plugin
/// names resources after the product (`GA102GL_A10`), and its ids are IOMMU group numbers; the ids from a plugin for
/// network cards are card numbers.
fn is_plugin_name(name: &str) -> bool {
    name == "gpu" || ["gpu.", "gpu-", "mig-"].iter().any(|prefix| name.starts_with(prefix))
}

/// A number in its printed form: no sign, no leading zero.
fn number(digits: &str) -> Option<u32> {
    let plain = digits == "0" || !digits.starts_with(['0', '+']);
    digits.parse().ok().filter(|_| plain)
}

/// Hexadecimal digits in groups of 8, 4, 4, 4 and 12.
fn uuid(text: &str) -> Option<()> {
    let hyphen = |at| matches!(at, 8 | 13 | 18 | 23);
    let fits = |(at, byte): (usize, u8)| if hyphen(at) { byte == b'-' } else { byte.is_ascii_hexdigit() };
    (text.len() == 36 && text.bytes().enumerate().all(fits)).then_some(())
}

#[cfg(test)]
mod tests;
