//! A `/proc` built by hand, whose files can be made to hang or fail. It exists alongside the simulator's own `/proc`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::harness::Machine;

/// The folder.
pub(crate) struct ByHand {
    pub(crate) folder: PathBuf,
}

impl ByHand {
    pub(crate) fn beside(machine: &Machine) -> Self {
        let folder = machine.folder.path().join("by-hand");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("stat"), "cpu  1 2 3\nbtime 1700000000\n").unwrap();
        Self { folder }
    }

    pub(crate) fn flag(&self) -> String {
        format!("--path.procfs={}", self.folder.display())
    }

    pub(crate) fn add(&self, pid: u32, comm: &str, script: &str) {
        self.begin(pid, pid, (comm, script), "train.service");
    }

    /// Adds a process in a single step, as the kernel does. `start` is in clock ticks.
    pub(crate) fn begin(&self, pid: u32, start: u32, (comm, script): (&str, &str), unit: &str) {
        let dir = self.folder.join(format!("{pid}.new"));
        fs::create_dir(&dir).unwrap();
        let stat = format!("{pid} ({comm}) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 4096 1 0\n");
        fs::write(dir.join("stat"), stat).unwrap();
        fs::write(dir.join("status"), "Uid:\t1000\t1000\t1000\t1000\n").unwrap();
        fs::write(dir.join("cgroup"), format!("0::/system.slice/{unit}\n")).unwrap();
        fs::write(dir.join("cmdline"), format!("{comm}\0{script}\0")).unwrap();
        fs::rename(dir, self.folder.join(pid.to_string())).unwrap();
    }

    /// Makes one of a process's files hang: opening a pipe without a writer blocks, just as reading the files of
    /// a process blocks while its memory map is locked.
    pub(crate) fn wedge(&self, pid: u32, file: &str) {
        let path = self.folder.join(format!("{pid}/{file}"));
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    }
}
