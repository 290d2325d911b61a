//! A peak of a device's memory use, what held the memory, and the sentence about it.
//!
//! Invariant: the sentence names amounts that add up to the peak, or says by how much they do not.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::{HeapUse, names};
use crate::format::bytes;

/// Amounts that differ by less than this are the same: a driver's own use moves by some MiB.
const SAME: u64 = 64 << 20;
/// The sentence names what is not a named holder's from this number of bytes on.
const SHOWN: u64 = 16 << 20;
/// Readings that are closer than this, in seconds, are of one moment.
pub(crate) const SAME_MOMENT: f64 = 0.05;
/// The number of holders that the sentence names.
const NAMED: usize = 3;

/// The highest memory use of a device in a minute.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedPeak {
    /// The number of the minute, counted from the recorder's start.
    pub minute: u64,
    /// Unix time in seconds at which it was reached.
    pub at: f64,
    /// Bytes.
    pub used_bytes: u64,
    /// Unix time in seconds of the list that was read next; absent until there is one.
    pub listed_at: Option<f64>,
    /// Bytes that all processes of that list held, as far as the driver reports them.
    pub listed_bytes: Option<u64>,
    /// Bytes that no visible process held when the list was read; absent if that is unknown.
    pub unattributed_bytes: Option<u64>,
    /// The number of processes in the list.
    pub processes: Option<u64>,
    /// The number of those whose memory the driver does not report.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unreported: u64,
    /// The largest holders, largest first: processes if the list has up to three, and otherwise workloads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<PeakHolder>,
    /// What held the memory, in words.
    #[serde(default)]
    pub held_by: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A process or a workload that held memory at a peak.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakHolder {
    /// The pid; absent for several processes.
    pub pid: Option<u32>,
    /// The process's name; absent for a workload, and if it is unknown.
    pub name: Option<String>,
    /// The user's name, or the uid; absent for a workload, and if it is unknown.
    pub user: Option<String>,
    /// The workload; absent if unknown.
    pub workload: Option<String>,
    /// The UUID of the MIG device that a process uses.
    pub mig_uuid: Option<String>,
    /// The number of processes.
    #[serde(default = "one")]
    pub processes: u64,
    /// Bytes.
    pub used_bytes: u64,
}

pub(super) fn one() -> u64 {
    1
}

impl PeakHolder {
    /// Whether both are processes of one workload or, without one, of one user and name.
    pub(crate) fn is_same_group(&self, other: &Self) -> bool {
        (&self.workload, &self.name, &self.user) == (&other.workload, &other.name, &other.user)
    }

    /// `train.py (pid 4711, slurm:77) 66.6 GiB`, or `slurm:77 (4 processes) 66.6 GiB`.
    fn words(&self) -> String {
        let owner = self.workload.as_deref().or(self.user.as_deref());
        let who = match (self.pid, &self.workload) {
            (None, Some(workload)) => names::name(workload),
            (pid, _) => names::process(self.name.as_deref(), pid, owner),
        };
        let number = if self.processes > 1 { format!(" ({} processes)", self.processes) } else { String::new() };
        format!("{who}{number} {}", bytes(self.used_bytes))
    }
}

impl HeapUse for PeakHolder {
    fn heap_use(&self) -> usize {
        [&self.name, &self.user, &self.workload, &self.mig_uuid].into_iter().map(HeapUse::heap_use).sum()
    }
}

impl RecordedPeak {
    /// What held the memory, in words.
    pub(crate) fn sentence(&self) -> String {
        let (Some(listed_at), Some(held)) = (self.listed_at, self.listed_bytes) else {
            return "holders unknown: no list of processes is kept for it".to_owned();
        };
        let unreported = match self.unreported {
            0 => String::new(),
            number => format!("; the driver does not report the memory of {number} processes"),
        };
        let named = &self.holders[..self.holders.len().min(NAMED)];
        let of_named = named.iter().fold(0_u64, |sum, holder| sum.saturating_add(holder.used_bytes));
        let rest = Some(held.saturating_sub(of_named)).filter(|bytes| *bytes >= SHOWN);
        let unattributed = self.unattributed_bytes.filter(|bytes| *bytes >= SHOWN);
        let mut parts: Vec<_> = named.iter().map(PeakHolder::words).collect();
        parts.extend(rest.map(|rest| format!("others {}", bytes(rest))));
        parts.extend(unattributed.map(|unattributed| format!("no visible process {}", bytes(unattributed))));
        // What the sentence names must add up, not what it leaves out.
        let told = [Some(of_named), rest, unattributed].into_iter().flatten().fold(0, u64::saturating_add);
        let is_same = told.abs_diff(self.used_bytes) < SAME;
        let later = listed_at - self.at;
        let when = if later >= SAME_MOMENT { format!(" {later:.1} s later") } else { " next".to_owned() };
        let (shown, used) = (bytes(held), bytes(self.used_bytes));
        if parts.is_empty() {
            let is_nobody = is_same && self.processes == Some(0) && self.unattributed_bytes.is_some();
            if is_nobody {
                return "held by no process".to_owned();
            }
            return format!(
                "holders unknown: the list read{when} names no process that held any of {used}{unreported}"
            );
        }
        let parts = parts.join(", ");
        match () {
            () if is_same => format!("held by {parts}{unreported}"),
            () if held > self.used_bytes => {
                let more = bytes(held - self.used_bytes);
                format!("processes listed{when} held {shown}, {more} more than this peak: {parts}{unreported}")
            }
            () if shown == used => {
                let less = bytes(self.used_bytes - held);
                format!("processes listed{when} held {shown}, {less} less than this peak: {parts}{unreported}")
            }
            () => format!("processes listed{when} held {shown} of {used}: {parts}{unreported}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn holder(pid: Option<u32>, workload: &str, gib: u64) -> PeakHolder {
        let processes = if pid.is_some() { 1 } else { 30 };
        let name = pid.map(|_| "train.py".to_owned());
        PeakHolder {
            pid,
            name,
            workload: Some(workload.into()),
            processes,
            used_bytes: gib * GIB,
            ..PeakHolder::default()
        }
    }

    fn peak(used: u64, held: u64, unattributed: Option<u64>, holders: &[PeakHolder]) -> RecordedPeak {
        RecordedPeak {
            minute: 1,
            at: 100.0,
            used_bytes: used * GIB,
            listed_at: Some(100.3),
            listed_bytes: Some(held * GIB),
            unattributed_bytes: unattributed.map(|bytes| bytes * GIB),
            processes: Some(60),
            unreported: 0,
            holders: holders.to_vec(),
            held_by: String::new(),
        }
    }

    #[test]
    fn amounts_add_up_or_the_sentence_says_that_they_do_not() {
        let two = [holder(Some(7), "slurm:77", 60), holder(Some(8), "slurm:78", 30)];
        assert_eq!(
            peak(90, 90, Some(0), &two).sentence(),
            "held by train.py (pid 7, slurm:77) 60.00 GiB, train.py (pid 8, slurm:78) 30.00 GiB"
        );
        assert_eq!(
            peak(93, 90, Some(3), &two).sentence(),
            "held by train.py (pid 7, slurm:77) 60.00 GiB, train.py (pid 8, slurm:78) 30.00 GiB, no visible process 3.00 GiB"
        );
        assert_eq!(
            peak(95, 90, Some(0), &two).sentence(),
            "processes listed 0.3 s later held 90.00 GiB of 95.00 GiB: train.py (pid 7, slurm:77) 60.00 GiB, \
             train.py (pid 8, slurm:78) 30.00 GiB"
        );
        assert_eq!(
            peak(95, 90, None, &two[..1]).sentence(),
            "processes listed 0.3 s later held 90.00 GiB of 95.00 GiB: train.py (pid 7, slurm:77) 60.00 GiB, others 30.00 GiB"
        );
        let four: Vec<_> = (1..=4).map(|n| holder(None, &format!("slurm:{n}"), 10)).collect();
        assert_eq!(
            peak(40, 40, Some(0), &four).sentence(),
            "held by slurm:1 (30 processes) 10.00 GiB, slurm:2 (30 processes) 10.00 GiB, slurm:3 (30 processes) 10.00 GiB, others 10.00 GiB"
        );
    }

    #[test]
    fn a_list_that_shows_more_or_nearly_as_much_says_by_how_much() {
        let one = [holder(Some(7), "slurm:77", 80)];
        assert_eq!(
            peak(50, 80, Some(0), &one).sentence(),
            "processes listed 0.3 s later held 80.00 GiB, 30.00 GiB more than this peak: train.py (pid 7, slurm:77) 80.00 GiB"
        );
        // 90 MiB are less than what is shown of 139.8 GiB.
        let used = 139 * GIB + 800 * MIB;
        let near = [PeakHolder { used_bytes: used - 90 * MIB, ..holder(Some(7), "slurm:77", 1) }];
        let near = RecordedPeak { used_bytes: used, listed_bytes: Some(used - 90 * MIB), ..peak(1, 1, Some(0), &near) };
        assert_eq!(
            near.sentence(),
            "processes listed 0.3 s later held 139.7 GiB of 139.8 GiB: train.py (pid 7, slurm:77) 139.7 GiB"
        );
        // What is left out adds up to less than what is the same.
        let small = [9000, 500, 320].map(|mib| PeakHolder { used_bytes: mib * MIB, ..holder(Some(7), "slurm:77", 1) });
        let many =
            RecordedPeak { used_bytes: 10_000 * MIB, listed_bytes: Some(9880 * MIB), ..peak(1, 1, None, &small) };
        let many = RecordedPeak { unattributed_bytes: Some(120 * MIB), ..many };
        assert!(many.sentence().ends_with("others 60 MiB, no visible process 120 MiB"), "{}", many.sentence());
    }

    #[test]
    fn what_is_not_known_is_said() {
        let empty = RecordedPeak { processes: Some(0), ..peak(0, 0, Some(0), &[]) };
        assert_eq!(empty.sentence(), "held by no process");
        assert_eq!(peak(2, 0, Some(2), &[]).sentence(), "held by no visible process 2.00 GiB");
        assert_eq!(
            peak(2, 0, None, &[]).sentence(),
            "holders unknown: the list read 0.3 s later names no process that held any of 2.00 GiB"
        );
        let unlisted = RecordedPeak { listed_at: None, listed_bytes: None, ..peak(2, 0, None, &[]) };
        assert_eq!(unlisted.sentence(), "holders unknown: no list of processes is kept for it");
        let silent = RecordedPeak { unreported: 2, ..peak(0, 0, None, &[]) };
        let said = silent.sentence();
        assert!(said.starts_with("holders unknown: "), "{said}");
        assert!(said.ends_with("; the driver does not report the memory of 2 processes"));
    }
}
