//! What the machine tells besides the calls: which processes are alive, how much is free, and whose threads are in a call.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::account::Machine;
use super::places::Device;
use gpu_readings::attribution::is_alive;
use gpu_readings::snapshot::{MemoryFigures, ProcessId, Snapshot, allocatable};

/// What is known of the machine besides the calls.
#[derive(Debug)]
pub(super) struct View<'a> {
    procfs: &'a Path,
    snapshot: &'a Snapshot,
    alive: RefCell<HashMap<ProcessId, bool>>,
}

impl<'a> View<'a> {
    /// For one round: whether a process is alive is looked up once.
    pub(super) fn new(procfs: &'a Path, snapshot: &'a Snapshot) -> Self {
        Self { procfs, snapshot, alive: RefCell::default() }
    }

    fn figures(&self, device: &Device) -> Option<MemoryFigures> {
        let memory = self.snapshot.memory.load();
        let gpu = memory.gpus.iter().find(|known| known.gpu.uuid == device.gpu.uuid)?;
        match &device.mig {
            Some(mig) => gpu.mig.iter().find(|known| known.device.uuid == mig.uuid)?.figures,
            None => gpu.figures,
        }
    }
}

impl Machine for View<'_> {
    fn is_alive(&self, process: ProcessId) -> bool {
        *self.alive.borrow_mut().entry(process).or_insert_with(|| is_alive(self.procfs, process))
    }

    fn has_thread(&self, process: u32, thread: u32) -> bool {
        self.procfs.join(format!("{process}/task/{thread}")).exists()
    }

    fn free(&self, device: &Device) -> Option<u64> {
        let memory = self.snapshot.memory.load();
        let shared = memory.gpus.iter().find(|known| known.gpu.uuid == device.gpu.uuid).and_then(|known| known.shared);
        self.figures(device)?.free.or(shared.map(|shared| shared.available))
    }

    fn allocatable(&self, device: &Device) -> Option<u64> {
        let figures = self.figures(device)?;
        Some(allocatable(figures.total, figures.reserved))
    }
}

/// The processes of threads that are in a call which gives memory back.
#[derive(Debug)]
pub(super) struct Givers {
    procfs: PathBuf,
    /// The threads of the last time.
    known: HashMap<u32, u32>,
}

impl Givers {
    pub(super) fn new(procfs: PathBuf) -> Self {
        Self { procfs, known: HashMap::new() }
    }

    /// A thread that has ended is of no process.
    pub(super) fn processes(&mut self, threads: &BTreeSet<u32>) -> HashSet<u32> {
        self.known.retain(|thread, _| threads.contains(thread));
        for thread in threads {
            if !self.known.contains_key(thread)
                && let Some(process) = self.process(*thread)
            {
                self.known.insert(*thread, process);
            }
        }
        self.known.values().copied().collect()
    }

    fn process(&self, thread: u32) -> Option<u32> {
        let status = std::fs::read(self.procfs.join(thread.to_string()).join("status")).ok()?;
        let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
        std::str::from_utf8(line).ok()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_of_its_process_as_long_as_it_is_in_a_call() {
        let own = std::process::id();
        let (told, thread) = std::sync::mpsc::channel::<u32>();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let waiting = std::thread::spawn(move || {
            // `PID/task/TID`
            let own = std::fs::read_link("/proc/thread-self").unwrap();
            told.send(own.file_name().unwrap().to_str().unwrap().parse().unwrap()).unwrap();
            let _ = ended.recv();
        });
        let thread = thread.recv().unwrap();
        let mut givers = Givers::new("/proc".into());
        // No thread has the number 0.
        assert_eq!(givers.processes(&[0, thread].into()), HashSet::from([own]));
        assert_ne!(thread, own);
        drop(end);
        waiting.join().unwrap();
        assert_eq!(givers.processes(&BTreeSet::new()), HashSet::new());
        assert!(givers.known.is_empty());
    }
}
