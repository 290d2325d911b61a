//! An exporter that sees a disk of 4 KiB in one folder.

use std::path::Path;
use std::process::Command;

use workspace_skips::missing;

use crate::harness::{Exporter, Machine, inside};

/// Starts the exporter on the machine, in a mount namespace in which `folder` is a file system of one page. The shell
/// command `prepare` runs before the exporter, with the folder as `$0`. `None` if such a namespace cannot be created: the
/// test should return.
pub(crate) fn export(machine: &Machine, folder: &Path, prepare: &str, flags: &[&str]) -> Option<Exporter> {
    let mount = format!("mount -t tmpfs -o size=4k none \"$0\" && {prepare}");
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(folder);
        command
    };
    let works = unshare(&mount).output().is_ok_and(|output| output.status.success());
    if missing("unshare, or the right to mount a file system,", works) {
        return None;
    }
    let outer = unshare(&format!("{mount} && exec \"$@\""));
    Some(Exporter::start(inside(outer, &machine.command(flags))))
}
