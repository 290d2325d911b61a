//! A process: when it is alive, its identity, and what it holds.

use std::sync::Arc;

use crate::clock::Nanos;
use crate::curve::Curve;
pub use crate::scenario::grammar::ProcessList;

/// Bytes of GPU memory that a CUDA context takes up, and that are attributed to its process.
pub(crate) const CONTEXT: u64 = 520 << 20;
/// Further bytes that a context takes up on the GPU; they are attributed to no process.
pub(crate) const CONTEXT_OVERHEAD: u64 = 8 << 20;

/// The lists that contain a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lists(pub(crate) u8);

impl Lists {
    pub(crate) fn contains(self, list: ProcessList) -> bool {
        self.0 & list as u8 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A process.
#[derive(Debug)]
pub struct Process {
    pub(crate) pids: Pids,
    pub(crate) lists: Lists,
    /// Index of the MIG device that it runs on.
    pub(crate) mig: Option<u32>,
    /// The start of the first run.
    pub(crate) start: Nanos,
    /// How long a run lasts; `None`: forever.
    pub(crate) lasts: Option<Nanos>,
    /// The time from the start of one run to the start of the next.
    pub(crate) repeat: Option<Nanos>,
    /// Bytes that it allocates; `None` if NVML does not report what the process holds.
    pub(crate) memory: Option<Curve>,
    /// Bytes of its context.
    pub(crate) context: u64,
    /// Share of the GPU.
    pub(crate) utilization: Curve,
    pub(crate) key: u64,
    pub(crate) identity: Arc<Identity>,
}

/// Which pid each run has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pids {
    /// Always the same.
    Fixed(u32),
    /// A different pid for each run, from a range that only this process uses.
    Fresh(u32),
}

/// The number of pids available to a process that takes a fresh one for each run.
pub(crate) const FRESH_PIDS: u32 = 128;

/// The identity of a process, for the simulated `/proc`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) command: Vec<Vec<u8>>,
    /// Its variables, each as `NAME=value`.
    pub(crate) environment: Vec<Vec<u8>>,
    pub(crate) comm: Vec<u8>,
    pub(crate) uid: u32,
    /// Its pid in a pid namespace of its own.
    pub(crate) namespace_pid: Option<u32>,
    pub(crate) cgroup: Vec<u8>,
    /// What the process reports about its allocator; empty if it has no client.
    pub(crate) allocator: Vec<u8>,
}

/// One run of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub number: u64,
    pub start: Nanos,
}

impl Process {
    /// The current run.
    pub fn life(&self, now: Nanos) -> Option<Life> {
        let since = now - self.start;
        if since < 0 {
            return None;
        }
        let number = self.repeat.map_or(0, |repeat| since / repeat);
        let start = self.start + number * self.repeat.unwrap_or(0);
        let alive = self.lasts.is_none_or(|lasts| now - start < lasts);
        alive.then_some(Life { number: number as u64, start })
    }

    /// The last run that ended before now.
    pub fn last_ended(&self, now: Nanos) -> Option<(Life, Nanos)> {
        let lasts = self.lasts?;
        let since_first_end = now - self.start - lasts;
        if since_first_end < 0 {
            return None;
        }
        let number = self.repeat.map_or(0, |repeat| since_first_end / repeat);
        let start = self.start + number * self.repeat.unwrap_or(0);
        Some((Life { number: number as u64, start }, start + lasts))
    }

    /// When the process's current run ends or its next one begins; `None`: nothing will change.
    pub fn next_change(&self, now: Nanos) -> Option<Nanos> {
        match self.life(now) {
            Some(life) => Some(life.start + self.lasts?),
            None if now < self.start => Some(self.start),
            None => {
                let repeat = self.repeat?;
                Some(self.start + ((now - self.start) / repeat + 1) * repeat)
            }
        }
    }

    /// Whether it is in a cgroup of the unified hierarchy, or in one below it.
    pub(crate) fn is_in(&self, cgroup: &[u8]) -> bool {
        let lines = self.identity.cgroup.split(|byte| *byte == b'\n');
        let mut own = lines.filter_map(|line| line.strip_prefix(b"0::"));
        own.any(|own| own.strip_prefix(cgroup).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")))
    }

    /// The pid of a run.
    pub fn pid(&self, number: u64) -> u32 {
        match self.pids {
            Pids::Fixed(pid) => pid,
            Pids::Fresh(base) => base + (number % u64::from(FRESH_PIDS)) as u32,
        }
    }

    /// Bytes that the process requests in a run.
    pub fn wants(&self, life: Life, now: Nanos) -> u64 {
        let allocated = self.memory.as_ref().map_or(0.0, |memory| memory.at(now - life.start, self.noise(life)));
        self.context + allocated as u64
    }

    /// The most bytes that the process ever requests.
    pub fn most(&self) -> u64 {
        self.context + self.overhead() + self.memory.as_ref().map_or(0.0, Curve::bound) as u64
    }

    /// The most bytes that the process has requested in a run up to a given time.
    pub fn peak(&self, life: Life, until: Nanos) -> u64 {
        let peak = self.memory.as_ref().map_or(0.0, |memory| memory.peak(until - life.start, self.noise(life)));
        self.context + peak as u64
    }

    /// Share of the GPU that the process uses in a run.
    pub fn busy(&self, life: Life, now: Nanos) -> f64 {
        self.utilization.at(now - life.start, self.noise(life))
    }

    /// Whether this is memory without an owner instead of a process: no list, no `/proc` and no call reports it.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.lists.is_empty()
    }

    /// Bytes that are in use while this process is alive, and that are attributed to no process.
    pub(crate) fn overhead(&self) -> u64 {
        if self.context > 0 { CONTEXT_OVERHEAD } else { 0 }
    }

    /// Bytes that the process always holds, if it runs forever from scenario time zero and its memory never changes.
    pub(crate) fn fixed(&self) -> Option<u64> {
        let memory = self.memory.as_ref().map_or(Some(0.0), Curve::fixed)?;
        (self.start <= 0 && self.lasts.is_none()).then_some(self.context + self.overhead() + memory as u64)
    }

    fn noise(&self, life: Life) -> u64 {
        crate::stable_hash::mix(self.key, life.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(start: Nanos, lasts: Option<Nanos>, repeat: Option<Nanos>) -> Process {
        Process {
            pids: Pids::Fresh(1000),
            lists: Lists(1),
            mig: None,
            start,
            lasts,
            repeat,
            memory: Some(Curve::constant(0.0)),
            context: CONTEXT,
            utilization: Curve::constant(0.0),
            key: 1,
            identity: Arc::default(),
        }
    }

    #[test]
    fn lives_come_and_go() {
        let process = process(10, Some(5), Some(20));
        let alive: Vec<Nanos> = (0..60).filter(|&t| process.life(t).is_some()).collect();
        assert_eq!(alive, [10..15, 30..35, 50..55].into_iter().flatten().collect::<Vec<_>>());
        assert_eq!(process.life(31), Some(Life { number: 1, start: 30 }));
        assert_ne!(process.pid(0), process.pid(1));
    }

    #[test]
    fn the_next_change_is_the_next_time_the_answer_differs() {
        for process in [
            process(10, Some(5), Some(20)),
            process(10, Some(20), Some(20)),
            process(-7, Some(9), None),
            process(3, None, None),
        ] {
            let state = |t| process.life(t).map(|life| life.number);
            for now in 0..100 {
                let seen = (now + 1..200).find(|&t| state(t) != state(now));
                assert_eq!(process.next_change(now), seen, "{process:?} at {now}");
                let ended = process.last_ended(now).map(|(life, end)| (life.number, end));
                let expected = (-20..=now).rev().find(|&t| state(t - 1).is_some() && state(t) != state(t - 1));
                assert_eq!(ended.map(|(_, end)| end), expected, "{process:?} at {now}");
            }
        }
    }
}
