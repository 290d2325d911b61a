//! One reading of the folder: a file for each job, named like the job, with the devices that are allocated to it.
//!
//! Invariant: the work is bounded, and a file is read as a whole or rejected as a whole. A folder into which others than its
//! owner may write is not read, because any user could allocate GPUs to any job there.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::regular_file;
use crate::snapshot::{Device, DeviceName, JobAllocation};

/// How many files are read. More jobs cannot hold GPUs of one machine at the same time.
pub(super) const MOST_JOBS: usize = 4096;
/// The longest content of a file in bytes: 128 UUIDs have 5 KiB.
const LONGEST: u64 = 16 * 1024;
/// The longest name of a job. A SLUID has 14 characters.
const LONGEST_NAME: usize = 20;
/// The permissions that let the group or others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// What the folder says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// Sorted, each once.
    pub(super) allocated: Vec<JobAllocation>,
    /// The files that are not lists of devices, or could not be read.
    pub(super) rejected: BTreeSet<PathBuf>,
    /// Whether there are more files than are read.
    pub(super) too_many: bool,
}

/// Reads the folder. One that does not exist (yet) allocates nothing: the first prolog creates it. May block for a long time.
///
/// # Errors
/// When it cannot be listed, is not a folder, or may be written to by others than its owner.
pub(super) fn read(folder: &Path) -> io::Result<Reading> {
    let mut reading = Reading::default();
    let found = match fs::metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(reading),
        found => found?,
    };
    if found.permissions().mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others than its owner may write to it"));
    }
    let mut files = 0;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        // The prolog writes into a hidden file first.
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        files += 1;
        if files > MOST_JOBS {
            reading.too_many = true;
            break;
        }
        let path = folder.join(&name);
        let content = match regular_file::read(&path, LONGEST) {
            // The job has ended since the folder was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            content => content.ok(),
        };
        let job = name.to_str().filter(|name| is_job(name));
        let devices = content.as_deref().and_then(devices);
        match job.zip(devices) {
            Some((job, devices)) => {
                reading
                    .allocated
                    .extend(devices.into_iter().map(|device| JobAllocation { job: job.to_owned(), device }));
            }
            None => {
                reading.rejected.insert(path);
            }
        }
    }
    reading.allocated.sort_unstable();
    reading.allocated.dedup();
    Ok(reading)
}

/// Whether the name can be that of a job: a number or a SLUID.
fn is_job(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The devices of a list with commas: UUIDs of GPUs or MIG devices, or the numbers that the driver gives to GPUs. `None` if
/// anything else is in it.
fn devices(content: &[u8]) -> Option<Vec<DeviceName>> {
    let text = std::str::from_utf8(content).ok()?.trim_ascii();
    text.split(',').map(device).collect()
}

/// The ids are of the forms that NVIDIA's device plugin uses for whole devices, and a bare number is NVML's index.
fn device(id: &str) -> Option<DeviceName> {
    let device = Device::read("nvidia.com/gpu", id).filter(|device| device.replica.is_none())?.device;
    let is_whole = !matches!(device, DeviceName::Minor { .. } | DeviceName::Index { mig: Some(_), .. });
    is_whole.then_some(device)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const GPU: &str = "GPU-b4c0ffee-0123-4567-89ab-0123456789ab";
    const MIG: &str = "MIG-1d2e3f40-5a6b-4c7d-8e9f-0a1b2c3d4e5f";

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    fn of(reading: &Reading) -> Vec<(&str, DeviceName)> {
        reading.allocated.iter().map(|allocation| (allocation.job.as_str(), allocation.device.clone())).collect()
    }

    #[test]
    fn every_form_of_a_device_is_read_and_each_is_listed_once() {
        let folder = folder();
        for (job, content) in [("900", "1,0,1\n"), ("sABCDEFGHJKMNP", GPU), ("901", MIG), (".902.17", "3\n")] {
            fs::write(folder.path().join(job), content).unwrap();
        }
        let index = |gpu| DeviceName::Index { gpu, mig: None };
        let reading = read(folder.path()).unwrap();
        let gpu = ("sABCDEFGHJKMNP", DeviceName::Gpu(GPU.into()));
        let mig = ("901", DeviceName::Mig(MIG.into()));
        assert_eq!(of(&reading), [("900", index(0)), ("900", index(1)), mig, gpu]);
        assert!(reading.rejected.is_empty() && !reading.too_many, "{reading:?}");
        let old = format!("MIG-{GPU}/3/0");
        let instance = DeviceName::Instance { gpu: GPU.into(), gpu_instance: 3, compute_instance: 0 };
        assert_eq!(devices(old.as_bytes()), Some(vec![instance]));
    }

    #[test]
    fn what_is_no_list_of_devices_is_rejected_as_a_whole() {
        let folder = folder();
        let wrong =
            ["", "\n", "0,", "0,x", "0 1", "-1", "nvidia0", "0:1", "0::2", "GPU-b4c0ffee", "4294967296", "NoDevFiles"];
        for (number, content) in wrong.iter().enumerate() {
            fs::write(folder.path().join(number.to_string()), content).unwrap();
        }
        fs::write(folder.path().join("job-7"), "0").unwrap();
        fs::write(folder.path().join("111111111111111111111"), "0").unwrap();
        fs::write(folder.path().join("long"), "0,".repeat(9000)).unwrap();
        fs::create_dir(folder.path().join("12")).unwrap();
        symlink("/dev/zero", folder.path().join("13")).unwrap();
        let reading = read(folder.path()).unwrap();
        assert_eq!(of(&reading), []);
        assert_eq!(reading.rejected.len(), wrong.len() + 5, "{:?}", reading.rejected);
    }

    #[test]
    fn a_link_to_nothing_is_a_job_that_has_ended() {
        let folder = folder();
        symlink("gone", folder.path().join("14")).unwrap();
        assert_eq!(read(folder.path()).unwrap(), Reading::default());
    }

    #[test]
    fn only_a_folder_of_its_owner_is_read_and_an_absent_one_is_empty() {
        let folder = folder();
        assert_eq!(read(&folder.path().join("absent")).unwrap(), Reading::default());
        fs::write(folder.path().join("900"), "0").unwrap();
        assert_eq!(of(&read(folder.path()).unwrap()).len(), 1);
        assert!(read(&folder.path().join("900")).is_err(), "a file");
        for mode in [0o775, 0o757, 0o777] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(folder.path()).unwrap_err().to_string(), "others than its owner may write to it");
        }
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let folder = folder();
        for job in 0..=MOST_JOBS {
            fs::write(folder.path().join(job.to_string()), "0").unwrap();
        }
        let reading = read(folder.path()).unwrap();
        assert!(reading.too_many);
        assert_eq!(reading.allocated.len(), MOST_JOBS);
    }
}
