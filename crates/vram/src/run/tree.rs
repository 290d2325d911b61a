//! The processes that belong to the command: its descendants in `/proc`, and those that the kernel reparented to this
//! process because their parents had ended.
//!
//! Invariant: a process that belongs to the tree stays in it as long as it is listed. Only listed processes are looked
//! up, by a search that goes from child to parent, so the cost does not depend on the number of processes on the
//! machine.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gpu_readings::snapshot::ProcessId;
use procfs::process::{Process, Stat};

use super::record::Membership;

/// How long a result read from `/proc` stays valid. No pid is reused within this time.
const VALID_FOR: Duration = Duration::from_millis(100);
/// The maximum number of ancestors that are followed. No tree of processes is this deep.
const DEEPEST: usize = 256;
/// How many times a search is tried if a process on the way to the root ends.
const TRIES: usize = 3;
/// Once this many processes are known, those that are no longer listed are forgotten.
const MOST_KNOWN: usize = 4096;
/// How long a process must be missing from the lists before it may be forgotten.
const UNSEEN: Duration = Duration::from_secs(10);

/// A listed process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) key: ProcessId,
    pub(super) membership: Membership,
    /// Whether the process is still running.
    pub(super) alive: bool,
}

/// The descendants of a process.
#[derive(Debug)]
pub(super) struct Tree {
    root: u32,
    known: HashMap<u32, (Found, Instant)>,
}

impl Tree {
    /// The descendants of `root`, without `root` itself.
    pub(super) fn below(root: u32) -> Self {
        Self { root, known: HashMap::new() }
    }

    /// The process that currently has the given pid.
    pub(super) fn find(&mut self, pid: u32, now: Instant) -> Found {
        let known = self.known.get(&pid).copied();
        if let Some((found, at)) = known
            && now.saturating_duration_since(at) < VALID_FOR
        {
            return found;
        }
        let found = match (stat(pid), known) {
            // The driver still lists a process for a moment after it has ended.
            (None, Some((found, _))) => Found { alive: false, ..found },
            (None, None) => {
                return Found {
                    key: ProcessId { pid, start_ticks: None },
                    membership: Membership::Unidentified,
                    alive: false,
                };
            }
            (Some(stat), Some((found, _))) if found.key.start_ticks == Some(stat.starttime) => {
                Found { alive: is_alive(&stat), ..found }
            }
            (Some(stat), _) => Found {
                key: ProcessId { pid, start_ticks: Some(stat.starttime) },
                membership: membership(self.root, pid),
                alive: is_alive(&stat),
            },
        };
        if self.known.len() >= MOST_KNOWN {
            self.known.retain(|_, (_, at)| now.saturating_duration_since(*at) < UNSEEN);
        }
        self.known.insert(pid, (found, now));
        found
    }
}

fn membership(root: u32, pid: u32) -> Membership {
    // If a parent ends while the chain of ancestors is being followed, the kernel assigns another parent.
    (0..TRIES)
        .find_map(|_| is_below(root, pid))
        .map_or(Membership::Unidentified, |below| if below { Membership::Tree } else { Membership::Other })
}

/// `None` if a process on the way to the root has ended.
fn is_below(root: u32, pid: u32) -> Option<bool> {
    let mut current = pid;
    for _ in 0..DEEPEST {
        let parent = u32::try_from(stat(current)?.ppid).unwrap_or(0);
        match parent {
            parent if parent == root => return Some(true),
            0 => return Some(false),
            parent => current = parent,
        }
    }
    Some(false)
}

fn stat(pid: u32) -> Option<Stat> {
    Process::new(i32::try_from(pid).ok()?).and_then(|process| process.stat()).ok()
}

fn is_alive(stat: &Stat) -> bool {
    !matches!(stat.state, 'Z' | 'X' | 'x')
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_belong_to_the_tree_and_ancestors_do_not() {
        let own = std::process::id();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut tree = Tree::below(own);
        let now = Instant::now();
        let found = tree.find(child.id(), now);
        assert_eq!((found.membership, found.alive), (Membership::Tree, true));
        assert!(found.key.start_ticks.is_some());
        assert_eq!(tree.find(1, now).membership, Membership::Other);
        assert_eq!(tree.find(own, now).membership, Membership::Other);
        let unknown = tree.find(4_194_304, now);
        assert_eq!((unknown.membership, unknown.key.start_ticks), (Membership::Unidentified, None));

        drop(child.stdin.take());
        child.wait().unwrap();
        let later = tree.find(child.id(), now + VALID_FOR);
        assert_eq!((later.membership, later.alive, later.key), (Membership::Tree, false, found.key));
    }
}
