//! The simulated `/proc`: a folder that holds exactly the live processes.
//!
//! A process's folder is written under a temporary name and then renamed, so a reader never sees an incomplete one.
//! The root has a marker file; a non-empty folder without it belongs to another program and is left alone.

mod record;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::clock::{self, Nanos};
use crate::machine::process::Process;
use crate::machine::{Container, Machine};

/// The file that marks the folder as this library's.
const MARK: &str = ".nvml-sim";
/// How long before scenario time zero the simulated machine booted.
const UPTIME: Nanos = 11 * 86_400 * clock::SECOND;

/// The folder and what it holds.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    /// Start times by pid.
    held: BTreeMap<u32, Nanos>,
    users: Option<BTreeMap<u32, String>>,
    containers: Option<Vec<Container>>,
}

impl Tree {
    /// Claims the folder: creates it, or removes what an earlier run left in it.
    pub(crate) fn take(root: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&root)?;
        let marked = root.join(MARK).exists();
        for entry in std::fs::read_dir(&root)? {
            let name = entry?.file_name();
            if !marked {
                let what = format!("holds `{}` and is not a folder that this library made", name.display());
                return Err(io::Error::other(what));
            }
            if is_process(&name) || name.as_bytes().starts_with(b".aside-") {
                std::fs::remove_dir_all(root.join(name))?;
            }
        }
        std::fs::write(root.join(MARK), "simulated processes\n")?;
        let tree = Self { root, held: BTreeMap::new(), users: None, containers: None };
        tree.place("stat", format!("cpu  0 0 0 0 0 0 0 0 0 0\nbtime {}\n", boot() / clock::SECOND).as_bytes())?;
        Ok(tree)
    }

    /// Updates the folder so that it holds exactly the processes that are alive now.
    pub(crate) fn update(&mut self, machine: &Machine, now: Nanos) -> io::Result<()> {
        if self.users.as_ref() != Some(&machine.users) {
            self.place("passwd", &record::passwd(&machine.users))?;
            self.users = Some(machine.users.clone());
        }
        if self.containers.as_ref() != Some(&machine.containers) {
            self.place("containers", &record::containers(&machine.containers))?;
            self.containers = Some(machine.containers.clone());
        }
        self.update_meminfo(machine, now)?;
        let up = (now + UPTIME) as f64 / clock::SECOND as f64;
        self.place("uptime", format!("{up:.2} {:.2}\n", up * 0.9).as_bytes())?;
        let visible = machine.processes.iter().filter(|process| !process.is_orphaned());
        let living = visible.filter_map(|process| {
            let life = process.life(now)?;
            Some((process.pid(life.number), (life.start, process)))
        });
        let living: BTreeMap<u32, (Nanos, &Process)> = living.collect();
        let gone = self.held.keys().copied().filter(|pid| !living.contains_key(pid));
        for pid in gone.collect::<Vec<_>>() {
            self.remove(pid)?;
            self.held.remove(&pid);
        }
        for (&pid, &(start, process)) in &living {
            match self.held.get(&pid) {
                Some(&held) if held == start => continue,
                Some(_) => self.remove(pid)?,
                None => {}
            }
            self.add(pid, start, process)?;
            self.held.insert(pid, start);
        }
        Ok(())
    }

    /// Updates what the machine reports about its memory, if a GPU shares it.
    pub(crate) fn update_meminfo(&self, machine: &Machine, now: Nanos) -> io::Result<()> {
        machine.meminfo(now).map_or(Ok(()), |meminfo| self.place("meminfo", meminfo.as_bytes()))
    }

    fn add(&self, pid: u32, start: Nanos, process: &Process) -> io::Result<()> {
        let aside = self.aside(pid);
        std::fs::create_dir_all(&aside)?;
        // Clock ticks since boot, 100 a second, as on every Linux that NVIDIA supports.
        let ticks = (clock::zero() + start - boot()).max(0) / (clock::SECOND / 100);
        for (name, content) in record::files(pid, ticks as u64, &process.identity) {
            std::fs::write(aside.join(name), content)?;
        }
        let place = self.root.join(pid.to_string());
        match std::fs::rename(&aside, &place) {
            // Another program with the same scenario has already written the same folder.
            Err(_) if place.is_dir() => std::fs::remove_dir_all(&aside),
            other => other,
        }
    }

    fn remove(&self, pid: u32) -> io::Result<()> {
        let aside = self.aside(pid);
        match std::fs::rename(self.root.join(pid.to_string()), &aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => std::fs::remove_dir_all(aside),
        }
    }

    fn aside(&self, pid: u32) -> PathBuf {
        self.root.join(format!(".aside-{}-{pid}", std::process::id()))
    }

    fn place(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let aside = self.root.join(format!(".{name}-{}", std::process::id()));
        std::fs::write(&aside, content)?;
        std::fs::rename(aside, self.root.join(name))
    }
}

/// The Unix time of boot in nanoseconds, rounded down to whole seconds.
fn boot() -> Nanos {
    let boot = clock::zero() - UPTIME;
    boot - boot.rem_euclid(clock::SECOND)
}

fn is_process(name: &OsStr) -> bool {
    name.as_bytes().iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_somebody_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("42")).unwrap();
        let error = Tree::take(folder.path().to_owned()).unwrap_err().to_string();
        assert!(error.contains("42"), "{error}");
        assert!(folder.path().join("42").is_dir());
    }

    #[test]
    fn what_an_earlier_run_left_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        Tree::take(folder.path().to_owned()).unwrap();
        std::fs::create_dir(folder.path().join("42")).unwrap();
        Tree::take(folder.path().to_owned()).unwrap();
        assert!(!folder.path().join("42").exists());
        assert!(folder.path().join("stat").is_file());
    }
}
