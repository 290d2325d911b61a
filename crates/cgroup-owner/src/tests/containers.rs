//! Containers without Kubernetes.

use super::{Row, container, nowhere, row, unit, user, with_container};

const MANAGER: &str = "0::/user.slice/user-1000.slice/user@1000.service";

pub(super) fn rows() -> Vec<Row> {
    let below = |rest: &str| format!("{MANAGER}{rest}");
    vec![
        row("docker, cgroupfs", "0::/docker/{A}", container("{A}")),
        row("docker from 20.10 on version 2: systemd", "0::/system.slice/docker-{A}.scope", container("{A}")),
        row("docker --cgroup-parent=/batch", "0::/batch/{A}", container("{A}")),
        row("docker --cgroup-parent=gpu.slice", "0::/gpu.slice/docker-{A}.scope", container("{A}")),
        row(
            "docker 1.9, version 1: name=systemd left at the daemon (kubernetes#18202)",
            "9:perf_event:/docker/{A}\n5:memory:/docker/{A}\n3:cpu,cpuacct:/docker/{A}\n\
             1:name=systemd:/system.slice/docker.service",
            container("{A}"),
        ),
        row(
            "docker without systemd: OpenRC's hierarchy names the daemon",
            "2:pids:/docker/{A}\n1:name=openrc:/docker",
            container("{A}"),
        ),
        row("systemd in a container", "0::/system.slice/docker-{A}.scope/system.slice/nginx.service", container("{A}")),
        row("docker in docker", "0::/docker/{A}/docker/{B}", container("{A}")),
        row("dockerd moved to a leaf by its entry point", "0::/docker/{A}/init", container("{A}")),
        row(
            "rootless docker, systemd",
            &below("/user.slice/docker-{A}.scope"),
            with_container(user("user@1000.service"), "{A}"),
        ),
        row("rootless docker's own daemon", &below("/app.slice/docker.service"), user("docker.service")),
        row("nerdctl, systemd", "0::/system.slice/nerdctl-{A}.scope", container("{A}")),
        row("nerdctl, cgroupfs", "0::/default/{A}", container("{A}")),
        row("ctr run … worker-1", "0::/default/worker-1", container("worker-1")),
        row("containerd's namespace of docker", "0::/moby/{A}", container("{A}")),
        row("nothing but the namespace", "0::/default", nowhere()),
        row("ctr -n k8s.io run", "0::/k8s.io/my-test_container", container("my-test_container")),
        row(
            "containerd's client in a namespace of its own",
            "0::/my.namespace/container.name",
            container("container.name"),
        ),
        row("the same, version 1", "9:memory:/my.namespace/container.name/init", container("container.name")),
        row("a namespace below something else", "0::/site/my.namespace/container.name", nowhere()),
        row("a directory at the top whose name does not look like a domain", "0::/site/container.name", nowhere()),
        row("a unit below a namespace's name: service", "0::/default/some_short_id.service", nowhere()),
        row("the same: slice", "0::/default/some_short_id.slice", nowhere()),
        row("the same: scope", "0::/default/some_short_id.scope", nowhere()),
        row("libvirt's partition is not a namespace", "0::/production.partition/guest1", nowhere()),
        row("a mount at the top is not a namespace", "0::/dev-hugepages.mount/x", unit("dev-hugepages.mount")),
        row(
            "rootless nerdctl",
            &below("/user.slice/nerdctl-{A}.scope"),
            with_container(user("user@1000.service"), "{A}"),
        ),
        row("containerd, a scope named after it", "0::/system.slice/containerd-{A}.scope", container("{A}")),
        row("podman, systemd", "0::/machine.slice/libpod-{A}.scope", container("{A}")),
        row("podman with crun: the leaf `container`", "0::/machine.slice/libpod-{A}.scope/container", container("{A}")),
        row(
            "podman, a pod",
            "0::/machine.slice/machine-libpod_pod_{B}.slice/libpod-{A}.scope/container",
            container("{A}"),
        ),
        row("podman, cgroupfs", "0::/libpod_parent/libpod-{A}", container("{A}")),
        row("podman, cgroupfs, with crun", "0::/libpod_parent/libpod-{A}/container", container("{A}")),
        row("podman, cgroupfs, a pod", "0::/libpod_parent/{B}/libpod-{A}", container("{A}")),
        row("podman, cgroupfs: its monitors", "0::/libpod_parent/conmon", nowhere()),
        row("podman: a monitor", "0::/machine.slice/libpod-conmon-{A}.scope", unit("libpod-conmon-{A}.scope")),
        row(
            "rootless podman",
            &below("/user.slice/libpod-{A}.scope/container"),
            with_container(user("user@1000.service"), "{A}"),
        ),
        row(
            "rootless podman, a pod",
            &below("/user.slice/user-libpod_pod_{B}.slice/libpod-{A}.scope/container"),
            with_container(user("user@1000.service"), "{A}"),
        ),
        row(
            "Quadlet (podman --cgroups=split): the unit is outside, and it persists across restarts",
            "0::/system.slice/llm.service/libpod-payload-{A}",
            with_container(unit("llm.service"), "{A}"),
        ),
        row("Quadlet: conmon's cgroup", "0::/system.slice/llm.service/runtime", unit("llm.service")),
        row(
            "Quadlet of a user",
            &below("/app.slice/redis.service/libpod-payload-{A}"),
            with_container(user("redis.service"), "{A}"),
        ),
        row("Nomad 1.3 to 1.6, docker driver", "0::/nomad.slice/docker-{A}.scope", container("{A}")),
        row("Nomad, podman driver", "0::/nomad.slice/libpod-{A}.scope/container", container("{A}")),
        row("ECS on EC2, version 1", "11:memory:/ecs/{T}/{A}", container("{A}")),
        row("ECS on EC2 with the cluster's name", "11:memory:/ecs/gpus/{T}/{A}", container("{A}")),
        row("ECS on EC2, version 2", "0::/ecstasks.slice/ecstasks-{T}.slice/docker-{A}.scope", container("{A}")),
        row("ECS on Fargate 1.4", "0::/ecs/{T}/{T}-2532581721", container("{T}-2532581721")),
        row("ECS on Fargate 1.4, the short form", "4:memory:/ecs/{T}-104567891", container("{T}-104567891")),
        row("the same name outside ECS is not a container", "0::/batch/{T}-104567891", nowhere()),
        row(
            "LXC 4 to 6, LXD, Incus, version 2",
            "0::/lxc.payload.build-1/system.slice/nginx.service",
            container("build-1"),
        ),
        row("LXD with a project", "0::/lxc.payload.research_c1/init.scope", container("research_c1")),
        row("LXC 4, version 1", "5:memory:/lxc.payload/build-1", container("build-1")),
        row("LXC 3, version 1", "5:memory:/lxc/build-1/user.slice", container("build-1")),
        row("Proxmox VE: the payload's namespace", "0::/lxc/101/ns/system.slice/ollama.service", container("101")),
        row("Incus, version 2", "0::/incus.payload.build-1/init.scope", container("build-1")),
        row("Incus, the name below", "9:memory:/incus.payload/build-1/system.slice", container("build-1")),
        row("Incus' monitor", "0::/incus.monitor.build-1", nowhere()),
        row("Incus' monitor, the name below", "0::/incus.monitor/build-1", nowhere()),
        row("LXC's monitor", "0::/lxc.monitor.build-1", nowhere()),
        row("Proxmox VE's monitor", "0::/lxc.monitor/101", nowhere()),
        row("lxc.cgroup.dir = lxc", "0::/lxc/lxc.payload.build-1", container("build-1")),
        row("lxc.cgroup.dir = lxc, the monitor", "0::/lxc/lxc.monitor.build-1", nowhere()),
        row("a directory named like containerd's namespace", "0::/site/default/worker-1", nowhere()),
        row(
            "LXC 5 in a user's session",
            "0::/user.slice/user-1000.slice/session-7.scope/lxc.payload.dev",
            with_container(user("session-7.scope"), "dev"),
        ),
        row("docker in LXC", "0::/lxc.payload.build-1/docker/{A}", container("build-1")),
        row(
            "systemd-nspawn",
            "0::/machine.slice/systemd-nspawn@trixie.service/payload/system.slice/nginx.service",
            container("trixie"),
        ),
        row(
            "systemd-nspawn, the machine's name escaped",
            r"0::/machine.slice/systemd-nspawn@my\x2dbox.service",
            container("my-box"),
        ),
        row(
            "systemd-nspawn from the command line",
            r"0::/machine.slice/machine-my\x2dbox.scope/payload/init.scope",
            container("my-box"),
        ),
        row(
            "a machine of machined, version 1",
            "1:name=systemd:/machine.slice/machine-trixie.scope",
            container("trixie"),
        ),
        row(
            "libvirt's LXC driver (libvirt.org/cgroups.html)",
            r"0::/machine.slice/machine-lxc\x2d12345\x2ddemo.scope/libvirt",
            container("demo"),
        ),
        row(
            "the same with a hyphen in the name",
            r"8:devices:/machine.slice/machine-lxc\x2d50642\x2dk8s\x2dcp.scope/libvirt/system.slice/crio.service",
            container("k8s-cp"),
        ),
        row(
            "libvirt's LXC driver on Fedora 20: no number",
            r"6:freezer:/machine.slice/machine-lxc\x2del_sirius.scope",
            container("el_sirius"),
        ),
        row("libvirt's LXC driver without systemd", "6:freezer:/machine/a-b.libvirt-lxc", container("a-b")),
        row(
            "the same in partitions",
            "6:freezer:/machine/engineering.partition/production.partition/lxc-22222-container2.libvirt-lxc",
            container("container2"),
        ),
        row(
            "Cloud Foundry's Garden, version 1",
            "12:memory:/system.slice/garden.service/garden/6f265890-5165-7fab-6b52-18d1\n\
             10:freezer:/garden/6f265890-5165-7fab-6b52-18d1\n\
             1:name=systemd:/system.slice/garden.service/garden/6f265890-5165-7fab-6b52-18d1",
            container("6f265890-5165-7fab-6b52-18d1"),
        ),
        row(
            "Garden with a limit on processors",
            "4:cpu,cpuacct:/system.slice/garden.service/garden/good/2f57368b-0eda-4e52-64d8-af5c",
            container("2f57368b-0eda-4e52-64d8-af5c"),
        ),
        row(
            "Garden, a container that checks another one's health",
            "0::/system.slice/garden.service/garden/c034152c-80b0-4a44-70df-5c61-liveness-healthcheck-0",
            container("c034152c-80b0-4a44-70df-5c61-liveness-healthcheck-0"),
        ),
        row("Garden, a UUID and a tag", "0::/garden-2/{P}", container("{P}")),
        row("Garden itself", "0::/system.slice/garden.service/garden", unit("garden.service")),
        row(
            "docker in systemd-nspawn",
            "0::/machine.slice/systemd-nspawn@trixie.service/payload/system.slice/docker-{A}.scope",
            container("trixie"),
        ),
    ]
}
