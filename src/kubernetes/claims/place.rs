//! Which GPU or MIG device a driver's attributes mean.

use crate::snapshot::{DeviceName, Driver};

use super::Problem;
use crate::kubernetes::api::slice::Published;

/// Where a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A GPU or a MIG device that the NVIDIA driver lists.
    Device(DeviceName),
    /// No GPU of NVIDIA: a network card, or another vendor's GPU.
    Elsewhere,
}

/// The device with the published UUID or, if its UUID is not published, the only MIG device of its profile on its GPU.
/// `claimed`: how many devices of claims are known by this parent and profile alone.
pub(super) fn place(published: &Published, driver: &Driver, claimed: usize) -> Result<Place, Problem> {
    if let Some((uuid, device)) = published.uuid.as_deref().and_then(|uuid| Some((uuid, named(uuid)?))) {
        let found = driver.find(&device).is_some();
        return if found { Ok(Place::Device(device)) } else { Err(Problem::NotHere(uuid.to_owned())) };
    }
    let parent = published.parent.as_deref().filter(|parent| parent.starts_with("GPU-"));
    let (Some(parent), Some(profile)) = (parent, published.profile.as_deref()) else { return Ok(Place::Elsewhere) };
    let Some(gpu) = driver.gpus.iter().find(|gpu| gpu.uuid == parent) else {
        return Err(Problem::NotHere(parent.to_owned()));
    };
    let fits: Vec<_> = gpu.mig.iter().filter(|mig| mig.profile.as_deref() == Some(profile)).collect();
    match fits.as_slice() {
        [mig] if claimed <= 1 => Ok(Place::Device(DeviceName::Mig(mig.uuid.clone()))),
        _ => {
            let (parent, profile) = (parent.to_owned(), profile.to_owned());
            Err(Problem::Ambiguous { parent, profile, count: fits.len(), claimed })
        }
    }
}

/// The device with a UUID in NVIDIA's form.
fn named(uuid: &str) -> Option<DeviceName> {
    match uuid.get(..4)? {
        "GPU-" => Some(DeviceName::Gpu(uuid.to_owned())),
        "MIG-" => Some(DeviceName::Mig(uuid.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::snapshot::{Gpu, MigDevice};

    /// A GPU without MIG, and one with two MIG devices of one profile and one of another.
    fn driver() -> Driver {
        let mig = |uuid: &str, profile: &str| {
            Arc::new(MigDevice { uuid: uuid.to_owned(), profile: Some(profile.to_owned()), ..MigDevice::default() })
        };
        let parts = vec![mig("MIG-1", "1g.10gb"), mig("MIG-2", "1g.10gb"), mig("MIG-3", "3g.40gb")];
        let whole = Gpu { uuid: "GPU-1".to_owned(), ..Gpu::default() };
        let divided = Gpu { index: 1, uuid: "GPU-2".to_owned(), mig: parts, ..Gpu::default() };
        Driver { up: true, gpus: vec![Arc::new(whole), Arc::new(divided)], ..Driver::default() }
    }

    fn placed(uuid: Option<&str>, parent: Option<&str>, profile: Option<&str>) -> Result<Option<String>, String> {
        placed_beside(1, uuid, parent, profile)
    }

    fn placed_beside(
        claimed: usize,
        uuid: Option<&str>,
        parent: Option<&str>,
        profile: Option<&str>,
    ) -> Result<Option<String>, String> {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let published = Published { uuid: text(uuid), parent: text(parent), profile: text(profile) };
        match place(&published, &driver(), claimed) {
            Ok(Place::Device(DeviceName::Gpu(uuid) | DeviceName::Mig(uuid))) => Ok(Some(uuid)),
            Ok(Place::Device(other)) => panic!("{other:?}"),
            Ok(Place::Elsewhere) => Ok(None),
            Err(problem) => Err(problem.to_string()),
        }
    }

    #[test]
    fn a_uuid_that_the_driver_lists_is_taken() {
        assert_eq!(placed(Some("GPU-1"), None, None), Ok(Some("GPU-1".to_owned())));
        assert_eq!(placed(Some("MIG-2"), Some("GPU-2"), Some("1g.10gb")), Ok(Some("MIG-2".to_owned())));
    }

    #[test]
    fn without_a_uuid_the_only_device_of_the_profile_is_taken() {
        assert_eq!(placed(None, Some("GPU-2"), Some("3g.40gb")), Ok(Some("MIG-3".to_owned())));
        // The driver does not list MIG-9, which is not MIG-3.
        assert!(placed(Some("MIG-9"), Some("GPU-2"), Some("3g.40gb")).unwrap_err().contains("names MIG-9, which"));
        // Only one of two claimed devices is listed, and nothing says which.
        let two = placed_beside(2, None, Some("GPU-2"), Some("3g.40gb")).unwrap_err();
        assert!(two.ends_with("lists 1, and claims have 2"), "{two}");
        for (profile, count) in [("1g.10gb", 2), ("7g.80gb", 0)] {
            let problem = placed(None, Some("GPU-2"), Some(profile)).unwrap_err();
            assert!(
                problem.ends_with(&format!("{profile} on GPU-2, where the driver lists {count}, and claims have 1")),
                "{problem}"
            );
        }
    }

    #[test]
    fn a_gpu_that_the_driver_does_not_list_is_a_problem_and_another_device_is_none() {
        assert!(placed(Some("GPU-9"), None, None).unwrap_err().contains("names GPU-9, which"));
        assert!(placed(None, Some("GPU-9"), Some("1g.10gb")).unwrap_err().contains("names GPU-9, which"));
        for (uuid, parent, profile) in [
            (None, None, None),
            (Some("0000:3d:00.0-0x0bda"), None, None),
            (Some(""), Some("card0"), Some("1g.10gb")),
            (Some("\u{e4}\u{e4}"), None, Some("1g.10gb")),
            (None, Some("GPU-2"), None),
        ] {
            assert_eq!(placed(uuid, parent, profile), Ok(None), "{uuid:?} {parent:?} {profile:?}");
        }
    }
}
