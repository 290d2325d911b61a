//! Kubernetes: both drivers, all classes, every runtime.

use super::{Row, container, pod, pod_only, row, unit};

const SYSTEMD_POD: &str = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{p}.slice";

pub(super) fn rows() -> Vec<Row> {
    let below = |rest: &str| format!("{SYSTEMD_POD}{rest}");
    vec![
        row("kubelet 1.2x cgroupfs + containerd 1.x, Guaranteed", "0::/kubepods/pod{P}/{A}", pod("{P}", "{A}")),
        row("the same, Burstable", "0::/kubepods/burstable/pod{P}/{A}", pod("{P}", "{A}")),
        row("the same, BestEffort", "0::/kubepods/besteffort/pod{P}/{A}", pod("{P}", "{A}")),
        row("the same, a static pod: its uid is an MD5 sum", "0::/kubepods/burstable/pod{S}/{A}", pod("{S}", "{A}")),
        row(
            "kubelet systemd + containerd (SystemdCgroup = true), Guaranteed",
            "0::/kubepods.slice/kubepods-pod{p}.slice/cri-containerd-{A}.scope",
            pod("{P}", "{A}"),
        ),
        row("the same, Burstable", &below("/cri-containerd-{A}.scope"), pod("{P}", "{A}")),
        row(
            "the same, BestEffort",
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{p}.slice/\
             cri-containerd-{A}.scope",
            pod("{P}", "{A}"),
        ),
        row(
            "the same, a static pod",
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{S}.slice/\
             cri-containerd-{A}.scope",
            pod("{S}", "{A}"),
        ),
        row("cri-o, systemd", &below("/crio-{A}.scope"), pod("{P}", "{A}")),
        row("cri-o with crun from 1.2x: the leaf `container`", &below("/crio-{A}.scope/container"), pod("{P}", "{A}")),
        row(
            "cri-o, conmon_cgroup = pod: the monitor belongs only to the pod",
            &below("/crio-conmon-{A}.scope"),
            pod_only("{P}"),
        ),
        row("cri-o, its default monitor", "0::/system.slice/crio-conmon-{A}.scope", unit("crio-conmon-{A}.scope")),
        row("cri-o, cgroupfs", "0::/kubepods/besteffort/pod{P}/crio-{A}", pod("{P}", "{A}")),
        row("cri-o, cgroupfs, the monitor", "0::/kubepods/besteffort/pod{P}/crio-conmon-{A}", pod_only("{P}")),
        row("dockershim and cri-dockerd, systemd (kubernetes#95488)", &below("/docker-{A}.scope"), pod("{P}", "{A}")),
        row("kubelet systemd, docker cgroupfs (cri-dockerd#101)", &below("/{A}"), pod("{P}", "{A}")),
        row("a process that the kubelet left in the pod's own cgroup", SYSTEMD_POD, pod_only("{P}")),
        row(
            "Kata: the virtual machine in the sandbox's cgroup",
            "0::/kubepods/burstable/pod{P}/kata_{A}",
            pod_only("{P}"),
        ),
        row(
            "systemd as the container's first process",
            &below("/cri-containerd-{A}.scope/init.scope"),
            pod("{P}", "{A}"),
        ),
        row("docker in docker in a pod", &below("/cri-containerd-{A}.scope/docker/{B}"), pod("{P}", "{A}")),
        row(
            "kubelet with cgroupRoot /kubelet, cgroupfs (kind before 0.12)",
            "0::/kubelet/kubepods/burstable/pod{P}/{A}",
            pod("{P}", "{A}"),
        ),
        row(
            "kubelet with cgroupRoot /kubelet, systemd (kind)",
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
             kubelet-kubepods-burstable-pod{p}.slice/cri-containerd-{A}.scope",
            pod("{P}", "{A}"),
        ),
        row(
            "the same, Guaranteed",
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{p}.slice/cri-containerd-{A}.scope",
            pod("{P}", "{A}"),
        ),
        row(
            "kubelet systemd, containerd 1.5 without SystemdCgroup (kubernetes#106514)",
            "0::/system.slice/containerd.service/kubepods-burstable-pod{p}.slice:cri-containerd:{A}",
            pod("{P}", "{A}"),
        ),
        row(
            "the same where containerd is in the root",
            "11:memory:/kubepods-besteffort-pod{p}.slice:cri-containerd:{A}",
            pod("{P}", "{A}"),
        ),
        row(
            "the same without `.slice` (a test of OpenTelemetry's C++ container detector)",
            "13:name=systemd:/kuberuntime/containerd/kubepods-pod{p}:cri-containerd:{A}",
            pod("{P}", "{A}"),
        ),
        row(
            "kubelet in a service that creates cgroups below its own (k3s in such a service)",
            "0::/system.slice/k3s.service/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{p}.slice/\
             cri-containerd-{A}.scope",
            pod("{P}", "{A}"),
        ),
        row("a directory named like a pod outside of kubepods", "0::/site/pod{P}/{A}", container("{A}")),
        row(
            "a slice with a name similar to kubepods",
            "0::/notkubepods.slice/notkubepods-pod{p}.slice/docker-{A}.scope",
            container("{A}"),
        ),
        row("the runtime itself", "0::/system.slice/containerd.service", unit("containerd.service")),
        row("the kubelet on Amazon Linux", "0::/runtime.slice/kubelet.service", unit("kubelet.service")),
        row("containerd in podruntime.slice", "0::/podruntime.slice/containerd.service", unit("containerd.service")),
        row("kubelet with --cgroups-per-qos=false, containerd", "0::/k8s.io/{A}", container("{A}")),
        row(
            "version 1, kubelet cgroupfs: all lines alike",
            "12:rdma:/\n11:memory:/kubepods/burstable/pod{P}/{A}\n10:devices:/kubepods/burstable/pod{P}/{A}\n\
             9:cpu,cpuacct:/kubepods/burstable/pod{P}/{A}\n1:name=systemd:/kubepods/burstable/pod{P}/{A}",
            pod("{P}", "{A}"),
        ),
        row(
            "hybrid: the unified line stays at the runtime",
            "5:pids:/kubepods/burstable/pod{P}/{A}\n2:cpu,cpuacct:/kubepods/burstable/pod{P}/{A}\n\
             1:name=systemd:/kubepods/burstable/pod{P}/{A}\n0::/system.slice/containerd.service",
            pod("{P}", "{A}"),
        ),
        row(
            "version 1: the memory line is at the pod, another is at its container",
            "11:memory:/kubepods/burstable/pod{P}\n10:devices:/kubepods/burstable/pod{P}/{A}",
            pod("{P}", "{A}"),
        ),
        row(
            "a dead process whose cgroup is gone (Linux 4.x and later)",
            &below("/cri-containerd-{A}.scope (deleted)"),
            pod("{P}", "{A}"),
        ),
    ]
}
