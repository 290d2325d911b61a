//! Real ids, where each comes from, and what must not be mistaken for such an id.

use super::*;

const UUID: &str = "b4c0ffee-0123-4567-89ab-0123456789ab";

fn gpu() -> DeviceName {
    DeviceName::Gpu(format!("GPU-{UUID}"))
}

fn mig() -> DeviceName {
    DeviceName::Mig(format!("MIG-{UUID}"))
}

fn minor(minor: u32, gpu_instance: Option<u32>) -> DeviceName {
    DeviceName::Minor { minor, gpu_instance }
}

fn index(gpu: u32, mig: Option<u32>) -> DeviceName {
    DeviceName::Index { gpu, mig }
}

fn instance(gpu_instance: u32, compute_instance: u32) -> DeviceName {
    DeviceName::Instance { gpu: format!("GPU-{UUID}"), gpu_instance, compute_instance }
}

#[test]
fn every_real_form_is_read() {
    let table = [
        // NVIDIA's k8s-device-plugin: the UUID, whatever its --device-id-strategy hands to the container runtime.
        ("nvidia.com/gpu", format!("GPU-{UUID}"), gpu(), None),
        // The same with MIG: the "single" strategy keeps the resource's name, and "mixed" names the profile.
        ("nvidia.com/gpu", format!("MIG-{UUID}"), mig(), None),
        ("nvidia.com/mig-1g.10gb", format!("MIG-{UUID}"), mig(), None),
        ("nvidia.com/mig-1g.10gb.me", format!("MIG-{UUID}"), mig(), None),
        // The same with time-slicing or MPS: "::" and the share. The resource can be renamed.
        ("nvidia.com/gpu", format!("GPU-{UUID}::3"), gpu(), Some("3")),
        ("nvidia.com/gpu.shared", format!("GPU-{UUID}::0"), gpu(), Some("0")),
        ("nvidia.com/mig-1g.10gb.shared", format!("MIG-{UUID}::11"), mig(), Some("11")),
        ("example.org/small-gpu", format!("GPU-{UUID}::1"), gpu(), Some("1")),
        // nos, a fork of the plugin for MPS, puts a share's memory size into the resource's name.
        ("nvidia.com/gpu-10gb", format!("GPU-{UUID}::2"), gpu(), Some("2")),
        // Drivers before 470 identified MIG devices by the GPU and two ids.
        ("nvidia.com/mig-3g.20gb", format!("MIG-GPU-{UUID}/2/0"), instance(2, 0), None),
        ("nvidia.com/mig-3g.20gb", format!("MIG-GPU-{UUID}/13/1::4"), instance(13, 1), Some("4")),
        // Plugins that hand out indices, with and without MIG and shares.
        ("nvidia.com/gpu", "0".into(), index(0, None), None),
        ("nvidia.com/gpu", "15".into(), index(15, None), None),
        ("nvidia.com/mig-1g.5gb", "0:1".into(), index(0, Some(1)), None),
        ("nvidia.com/gpu", "0::1".into(), index(0, None), Some("1")),
        ("nvidia.com/gpu.shared", "3:6::2".into(), index(3, Some(6)), Some("2")),
        // GKE's plugin: the device file, the GPU instance, the share under time-sharing or MPS.
        ("nvidia.com/gpu", "nvidia0".into(), minor(0, None), None),
        ("nvidia.com/gpu", "nvidia0/gi0".into(), minor(0, Some(0)), None),
        ("nvidia.com/gpu", "nvidia0/vgpu1".into(), minor(0, None), Some("1")),
        ("nvidia.com/gpu", "nvidia7/gi13/vgpu40".into(), minor(7, Some(13)), Some("40")),
    ];
    for (resource, id, device, replica) in table {
        let expected = Device { resource: resource.into(), device, replica: replica.map(str::to_owned) };
        assert_eq!(Device::read(resource, &id), Some(expected), "{resource} {id}");
    }
}

#[test]
fn nothing_else_is_taken_for_a_gpu() {
    let table = [
        // A scheduler, not the kubelet, picks the GPU: HAMi and Volcano, gpushare, HAMi's MIG templates.
        ("nvidia.com/gpu", format!("GPU-{UUID}-3")),
        ("volcano.sh/vgpu-number", format!("GPU-{UUID}-0")),
        ("aliyun.com/gpu-mem", format!("GPU-{UUID}-_-17")),
        ("nvidia.com/gpu", format!("GPU-{UUID}[1-0]")),
        // NVIDIA's KubeVirt plugin: an IOMMU group, or a mediated device's UUID.
        ("nvidia.com/GA102GL_A10", "23".into()),
        ("nvidia.com/NVIDIA_A10-4Q", UUID.into()),
        // Network cards and their shares, even if the operator gave them NVIDIA's prefix.
        ("nvidia.com/hostdev", "0000:86:00.1".into()),
        ("nvidia.com/rdma_shared", "0".into()),
        ("rdma/hca_shared_devices_a", "5".into()),
        ("intel.com/sriov", "0000:18:02.5".into()),
        ("smarter-devices/fuse", "nvidia0".into()),
        ("example.org/gpu", "0".into()),
        // Other vendors' UUIDs, and Jetsons, which NVML does not list.
        ("amd.com/gpu", format!("AMD-{UUID}")),
        ("nvidia.com/gpu", "tegra".into()),
        // Broken ids.
        ("", format!("GPU-{UUID}")),
        ("nvidia.com/gpu", String::new()),
        ("nvidia.com/gpu", "GPU-".into()),
        ("nvidia.com/gpu", format!("GPU-{}", &UUID[1..])),
        ("nvidia.com/gpu", format!("GPU-{}", UUID.replace('-', "0"))),
        ("nvidia.com/gpu", format!("GPU-{}", UUID.replace('b', "g"))),
        ("nvidia.com/gpu", format!("gpu-{UUID}")),
        ("nvidia.com/gpu", format!(" GPU-{UUID}")),
        ("nvidia.com/gpu", format!("GPU-{UUID}::")),
        ("nvidia.com/gpu", format!("GPU-{UUID}::x")),
        ("nvidia.com/gpu", format!("GPU-{UUID}::1::2")),
        ("nvidia.com/gpu", format!("MIG-GPU-{UUID}/1")),
        ("nvidia.com/gpu", format!("MIG-GPU-{UUID}/1/2/3")),
        ("nvidia.com/gpu", format!("MIG-GPU-{UUID}/-1/0")),
        ("nvidia.com/gpu", "GP\u{00dc}-x".into()),
        ("nvidia.com/gpu", "nvidia".into()),
        ("nvidia.com/gpu", "nvidiactl".into()),
        ("nvidia.com/gpu", "nvidia0/".into()),
        ("nvidia.com/gpu", "nvidia0/vgpu1/gi0".into()),
        ("nvidia.com/gpu", "nvidia0/gi0/gi1".into()),
        ("nvidia.com/gpu", "nvidia0/vgpu0::1".into()),
        ("nvidia.com/gpu", "nvidia-caps".into()),
        // Malformed numbers, and numbers that are too large.
        ("nvidia.com/gpu", "-1".into()),
        ("nvidia.com/gpu", "+1".into()),
        ("nvidia.com/gpu", "01".into()),
        ("nvidia.com/gpu", "1 ".into()),
        ("nvidia.com/gpu", "\u{0661}".into()),
        ("nvidia.com/gpu", "4294967296".into()),
        ("nvidia.com/gpu", "0:4294967296".into()),
        ("nvidia.com/gpu", "nvidia99999999999999999999".into()),
        ("nvidia.com/gpu", format!("GPU-{UUID}::99999999999999999999")),
        ("nvidia.com/gpu", "0:1:2".into()),
        // Too long.
        ("nvidia.com/gpu", format!("GPU-{UUID}::{}", "0".repeat(300))),
        ("nvidia.com/gpu", "9".repeat(1 << 20)),
    ];
    for (resource, id) in table {
        assert_eq!(Device::read(resource, &id), None, "{resource} {}", &id.chars().take(80).collect::<String>());
    }
    let resource = format!("{}/gpu", "x".repeat(314));
    assert_eq!(resource.len(), 318);
    assert_eq!(Device::read(&resource, &format!("GPU-{UUID}")), None);
    assert!(Device::read(&resource[1..], &format!("GPU-{UUID}")).is_some());
}
