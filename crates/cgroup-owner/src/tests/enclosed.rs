//! Seen from inside: this process is in a container, with or without a cgroup namespace of its own.

use super::{Row, container, nowhere, pod, row, step, unit, user, user_with, with_container};

pub(super) fn rows() -> Vec<Row> {
    namespaced().into_iter().chain(enclosing()).collect()
}

/// With a namespace (`man 7 cgroup_namespaces`): every path begins at this process's own cgroup.
fn namespaced() -> Vec<Row> {
    let from_within = |row: Row| row.seen_from("0::/");
    [
        row("its own cgroup", "0::/", nowhere()),
        row("a container of its own pod: the pod is not visible", "0::/../cri-containerd-{A}.scope", container("{A}")),
        row("the same, cri-o with crun", "0::/../crio-{A}.scope/container", container("{A}")),
        row("the same, cgroupfs", "0::/../{A}", container("{A}")),
        row(
            "systemd, BestEffort from BestEffort",
            "0::/../../kubepods-besteffort-pod{p}.slice/cri-containerd-{A}.scope",
            pod("{P}", "{A}"),
        ),
        row(
            "systemd, Burstable from BestEffort",
            "0::/../../../kubepods-burstable.slice/kubepods-burstable-pod{p}.slice/cri-containerd-{A}.scope",
            pod("{P}", "{A}"),
        ),
        row(
            "systemd, Guaranteed from BestEffort",
            "0::/../../../kubepods-pod{p}.slice/cri-containerd-{A}.scope",
            pod("{P}", "{A}"),
        ),
        row("cgroupfs, the same class: its name is not visible", "0::/../../pod{P}/{A}", pod("{P}", "{A}")),
        row("cgroupfs, another class", "0::/../../../burstable/pod{P}/{A}", pod("{P}", "{A}")),
        row("cgroupfs, Guaranteed", "0::/../../../pod{P}/{A}", pod("{P}", "{A}")),
        row("a static pod", "0::/../../../burstable/pod{S}/{A}", pod("{S}", "{A}")),
        row(
            "in kind",
            "0::/../../../kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{p}.slice/\
             cri-containerd-{A}.scope",
            pod("{P}", "{A}"),
        ),
        row("a unit of the node", "0::/../../../../system.slice/ollama.service", unit("ollama.service")),
        row("systemd of the node", "0::/../../../../init.scope", unit("init.scope")),
        row(
            "a login on the node",
            "0::/../../../../user.slice/user-1000.slice/session-3.scope",
            user("session-3.scope"),
        ),
        row("the node's root", "0::/../../../..", nowhere()),
        row("docker from docker, systemd", "0::/../docker-{A}.scope", container("{A}")),
        row("docker from docker, cgroupfs", "0::/../{A}/init", container("{A}")),
        row("ctr from docker", "0::/../../default/worker-1", container("worker-1")),
        row("LXC from LXC", "0::/../lxc.payload.build-1/init.scope", container("build-1")),
        row("a job from docker", "0::/../slurmstepd.scope/job_42/step_0/user/task_0", step("42", "0")),
        row("a job from docker, version 1", "9:memory:/../../slurm/uid_1000/job_42/step_0", step("42", "0")),
        row("a service from one with ProtectControlGroups=private", "0::/../ollama.service", unit("ollama.service")),
        row(
            "another user's slice",
            "0::/../../../../user-1001.slice/user@1001.service/app.slice/a.service",
            user_with(Some(1001), "a.service"),
        ),
        row("a user's systemd", "0::/../user@1000.service/app.slice/a.service", user("a.service")),
        row(
            "version 1, a namespace for each hierarchy",
            "9:memory:/../../pod{P}/{A}\n1:name=systemd:/../../pod{P}/{A}",
            pod("{P}", "{A}"),
        ),
    ]
    .into_iter()
    .map(from_within)
    .collect()
}

/// Without a namespace: what both paths have in common is the machine.
fn enclosing() -> Vec<Row> {
    const POD_IN_KIND: &str = "0::/docker/{K}/kubelet/kubepods/burstable/pod{X}/{A}";
    const OWN_IN_KIND: &str = "0::/docker/{K}/kubelet/kubepods/besteffort/pod{Q}/{E}";
    const NODE: &str = "0::/system.slice/docker-{K}.scope";
    vec![
        row("kind seen from the host: the node is the container", POD_IN_KIND, container("{K}")),
        row("kind seen from one of its pods, cgroupfs", POD_IN_KIND, pod("{X}", "{A}")).seen_from(OWN_IN_KIND),
        row(
            "kind seen from one of its pods, systemd",
            &format!(
                "{NODE}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{{x}}.slice/\
             cri-containerd-{{A}}.scope"
            ),
            pod("{X}", "{A}"),
        )
        .seen_from(&format!(
            "{NODE}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
             kubelet-kubepods-besteffort-pod{{q}}.slice/cri-containerd-{{E}}.scope"
        )),
        row("its own container in kind", OWN_IN_KIND, pod("{Q}", "{E}")).seen_from(OWN_IN_KIND),
        row(
            "another container of its own pod in kind",
            "0::/docker/{K}/kubelet/kubepods/besteffort/pod{Q}/{B}",
            pod("{Q}", "{B}"),
        )
        .seen_from(OWN_IN_KIND),
        row(
            "the node's containerd, seen from a pod in kind",
            &format!("{NODE}/system.slice/containerd.service"),
            unit("containerd.service"),
        )
        .seen_from(&format!(
            "{NODE}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{{q}}.slice/\
             cri-containerd-{{E}}.scope"
        )),
        row("a process in the node's own cgroup", "0::/docker/{K}", container("{K}")).seen_from(OWN_IN_KIND),
        row("another container of the host, from kind", "0::/docker/{A}", container("{A}")).seen_from(OWN_IN_KIND),
        row(
            "k3d, version 1",
            "5:memory:/docker/{K}/kubepods/burstable/pod{X}/{A}\n1:name=systemd:/docker/{K}",
            pod("{X}", "{A}"),
        )
        .seen_from("5:memory:/docker/{K}/kubepods/besteffort/pod{Q}/{E}\n1:name=systemd:/docker/{K}"),
        row(
            "kind in rootless podman",
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{K}.scope/kubelet/\
             kubepods/pod{X}/{A}",
            pod("{X}", "{A}"),
        )
        .seen_from(
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{K}.scope/kubelet/\
             kubepods/pod{Q}/{E}",
        ),
        row(
            "the same from the host",
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{K}.scope/kubelet/\
             kubepods/pod{X}/{A}",
            with_container(user("user@1000.service"), "{K}"),
        ),
        row("in LXC: a unit of the guest", "0::/lxc.payload.gpu/system.slice/ollama.service", unit("ollama.service"))
            .seen_from("0::/lxc.payload.gpu/system.slice/vram-exporter.service"),
        row("in LXC: docker of the guest", "0::/lxc.payload.gpu/docker/{A}", container("{A}"))
            .seen_from("0::/lxc.payload.gpu/system.slice/vram-exporter.service"),
        row("in docker: another container", "0::/docker/{A}", container("{A}")).seen_from("0::/docker/{E}"),
        row("in docker: its own", "0::/docker/{E}", container("{E}")).seen_from("0::/docker/{E}"),
        row("in a pod: another container of the pod", "0::/kubepods/pod{P}/{A}", pod("{P}", "{A}"))
            .seen_from("0::/kubepods/pod{P}/{E}"),
        row("in a pod: another pod", "0::/kubepods/pod{X}/{A}", pod("{X}", "{A}")).seen_from("0::/kubepods/pod{P}/{E}"),
        row("on the host as a unit", "0::/docker/{A}", container("{A}"))
            .seen_from("0::/system.slice/vram-exporter.service"),
    ]
}
