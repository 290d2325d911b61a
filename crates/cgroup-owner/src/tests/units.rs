//! systemd: units of the machine, users, sessions.

use super::{Row, nowhere, row, unit, user};
use crate::{Boundary, CgroupLocation};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("the root: kernel threads, or no systemd", "0::/", nowhere()),
        row("version 1 in the root", "9:memory:/\n1:name=systemd:/\n0::/", nowhere()),
        row("systemd itself", "0::/init.scope", unit("init.scope")),
        row("a service", "0::/system.slice/ollama.service", unit("ollama.service")),
        row(
            "a service with cgroups of its own (Delegate=)",
            "0::/system.slice/ollama.service/runner",
            unit("ollama.service"),
        ),
        row(
            "a template in its slice",
            "0::/system.slice/system-getty.slice/getty@tty1.service",
            unit("getty@tty1.service"),
        ),
        row(
            "a template with an escaped instance: kept as systemd shows it",
            r"0::/system.slice/system-vllm.slice/vllm@llama\x2d3.service",
            unit(r"vllm@llama\x2d3.service"),
        ),
        row(
            "systemd escapes a name that begins with an underscore",
            "0::/system.slice/__proxy.service",
            unit("_proxy.service"),
        ),
        row(
            "and one that could collide with a file of the kernel",
            "0::/system.slice/_cpu.service",
            unit("cpu.service"),
        ),
        row("systemd-run --scope", "0::/system.slice/run-r5f0c.scope", unit("run-r5f0c.scope")),
        row("a slice of its own", "0::/gpu.slice/gpu-train.slice/train.service", unit("train.service")),
        row("a process in a slice alone", "0::/gpu.slice", nowhere()),
        row(
            "libvirt, a virtual machine",
            r"0::/machine.slice/machine-qemu\x2d1\x2dvm.scope/libvirt/emulator",
            unit(r"machine-qemu\x2d1\x2dvm.scope"),
        ),
        row("a socket's process", "0::/system.slice/dbus.socket", unit("dbus.socket")),
        row(
            "version 1: systemd's own hierarchy names the unit",
            "9:memory:/system.slice\n8:devices:/system.slice\n1:name=systemd:/system.slice/\
             ollama.service\n0::/",
            unit("ollama.service"),
        ),
        row(
            "hybrid: both name it",
            "1:name=systemd:/system.slice/a.service\n0::/system.slice/a.service",
            unit("a.service"),
        ),
        row("Talos: no systemd", "0::/podruntime/kubelet", nowhere()),
        row("a name that is not a unit's, below a directory that is not a slice", "0::/site/x.service", nowhere()),
        row("a login", "0::/user.slice/user-1000.slice/session-3.scope", user("session-3.scope")),
        row(
            "version 1, a login on CentOS 7",
            "9:memory:/user.slice\n8:devices:/user.slice\n1:name=systemd:/user.slice/\
             user-1000.slice/session-3.scope",
            user("session-3.scope"),
        ),
        row(
            "version 1: the devices line stays at the user's slice",
            "9:devices:/user.slice/user-1000.slice\n1:name=systemd:/user.slice/user-1000.slice/\
             session-c2.scope",
            user("session-c2.scope"),
        ),
        row(
            "a user's unit",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service",
            user("jupyter.service"),
        ),
        row(
            "GNOME: a terminal's scope",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/\
             app-org.gnome.Terminal.slice/vte-spawn-1f.scope",
            user("vte-spawn-1f.scope"),
        ),
        row(
            "a user's unit from before app.slice was introduced",
            "0::/user.slice/user-1000.slice/user@1000.service/train.service/x",
            user("train.service"),
        ),
        row("a user's systemd", "0::/user.slice/user-1000.slice/user@1000.service/init.scope", user("init.scope")),
        row("a user's systemd alone", "0::/user.slice/user-1000.slice/user@1000.service", user("user@1000.service")),
        row(
            "a user's systemd, no unit directly below it",
            "0::/user.slice/user-1000.slice/user@1000.service/mine/x.service",
            user("user@1000.service"),
        ),
        row(
            "a user's slice alone",
            "0::/user.slice/user-1000.slice",
            CgroupLocation { boundary: Some(Boundary::User), user: Some(1000), ..CgroupLocation::default() },
        ),
        row("a service of the machine in user.slice", "0::/user.slice/kiosk.service", unit("kiosk.service")),
        row(
            "a user's unit with cgroups of its own",
            "0::/user.slice/user-1000.slice/user@1000.service/a.service/b.service",
            user("a.service"),
        ),
        row(
            "LXC's pam_cgfs, version 1: the user's own cgroup",
            "9:memory:/user/ada/0\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope",
            user("session-3.scope"),
        ),
        row("the slice of all users", "0::/user.slice", nowhere()),
    ]
}
