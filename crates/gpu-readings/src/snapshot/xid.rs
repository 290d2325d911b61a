//! What the codes of Xid errors mean: the only list of codes in the program.
//!
//! The classes follow NVIDIA's Xid catalogue, and its earlier list for GPUs before Ampere. If the first remedy there is
//! to restart or check the program, the class is `Application`; if the GPU, the machine or a part needs an action, it
//! is `Memory` or `Hardware`. 109 is an exception: its remedy is a reset, but NVIDIA's device plugin for Kubernetes
//! counts it among the errors of applications, and the driver itself reports the reset that it needs. 63, 92, 121 and
//! 154 need no action at once, but announce one. A code for which the catalogue names no cause or no remedy is in no
//! group.
//!
//! Invariant: no code is in two groups. Tests compare the runbook, the page about the recorder and the alerts with this
//! table.

use crate::closed_enum::closed_enum;

closed_enum! {
    /// What an Xid error says about the GPU: the label `class`.
    pub enum XidClass {
        /// The GPU, its links or its firmware failed.
        Hardware => "hardware",
        /// The memory of the GPU, or the memory inside its chip, failed or was repaired.
        Memory => "memory",
        /// Most likely an error of a program.
        Application => "application",
        /// Any code that is in no group of [`XIDS`].
        Unknown => "unknown",
    }
}

impl XidClass {
    /// The class of a code.
    pub fn of(code: u64) -> Self {
        XidGroup::of(code).map_or(Self::Unknown, |group| group.class)
    }
}

/// Codes with the same meaning.
#[derive(Debug, Clone, Copy)]
pub struct XidGroup {
    /// The codes, ascending.
    pub codes: &'static [u64],
    /// Their class, never [`XidClass::Unknown`].
    pub class: XidClass,
    /// What happened, in a few words that begin with a small letter or a name.
    pub meaning: &'static str,
    /// Whether the recorder keeps the history of the memory at such an error: the class memory, and page faults.
    pub concerns_memory: bool,
}

impl XidGroup {
    /// The group of a code; `None` if it is in none.
    pub fn of(code: u64) -> Option<&'static Self> {
        XIDS.iter().find(|group| group.codes.contains(&code))
    }

    const fn hardware(codes: &'static [u64], meaning: &'static str) -> Self {
        Self { codes, class: XidClass::Hardware, meaning, concerns_memory: false }
    }

    const fn memory(codes: &'static [u64], meaning: &'static str) -> Self {
        Self { codes, class: XidClass::Memory, meaning, concerns_memory: true }
    }

    const fn application(codes: &'static [u64], meaning: &'static str) -> Self {
        Self { codes, class: XidClass::Application, meaning, concerns_memory: false }
    }
}

/// Every group of codes.
pub static XIDS: [XidGroup; 31] = [
    XidGroup::memory(&[48, 95, 140, 171, 172], "memory error that could not be corrected or contained"),
    XidGroup::memory(&[94], "memory error that was contained"),
    XidGroup::memory(&[63], "a row or page is marked for replacement"),
    XidGroup::memory(&[64], "the replacement of a row or page failed"),
    XidGroup::memory(&[92], "corrected errors at a high rate"),
    XidGroup::memory(&[57, 58], "the interface to the memory"),
    XidGroup::memory(&[168], "errors in the protected region of the memory"),
    XidGroup::hardware(&[74], "NVLink"),
    XidGroup::hardware(&[136, 144, 145, 146, 147, 148, 149, 150, 155], "NVLink, Hopper and later"),
    XidGroup::hardware(&[79], "the GPU fell off the bus"),
    XidGroup::hardware(&[167], "a PCIe transfer timed out"),
    XidGroup::hardware(&[54], "no auxiliary power"),
    XidGroup::hardware(&[46, 158], "the GPU stopped working"),
    XidGroup::hardware(&[61, 62, 169], "a microcontroller of the GPU"),
    XidGroup::hardware(&[110, 151], "the GPU's security functions"),
    XidGroup::hardware(&[119, 120], "the GPU's system processor (GSP) does not answer"),
    XidGroup::hardware(&[121, 159], "link between chips (C2C)"),
    XidGroup::hardware(&[156, 157, 160, 161], "a part of the GPU was taken out of use, or could not be"),
    XidGroup::hardware(&[143, 154], "initialization failed, or the driver requests a recovery"),
    XidGroup::application(&[13], "invalid instruction or access in a kernel"),
    XidGroup { concerns_memory: true, ..XidGroup::application(&[31], "page fault: invalid memory access") },
    XidGroup::application(&[137], "invalid access to the memory of another GPU"),
    XidGroup::application(&[11, 25, 37, 69, 80], "invalid or corrupted commands"),
    XidGroup::application(&[8], "a program made no progress in time"),
    XidGroup::application(&[43], "a program was stopped after an error of its own"),
    XidGroup::application(&[45], "a program was stopped or ended"),
    XidGroup::application(&[109], "the GPU could not switch to another program in time"),
    XidGroup::application(&[39, 40, 41, 70, 71, 72, 75, 76, 77, 85], "copy engine"),
    XidGroup::application(&[126, 127, 128, 129, 130, 131, 132, 133, 134, 135], "copy engine, Blackwell and later"),
    XidGroup::application(&[60, 68, 83, 84, 86, 88, 89, 96, 97, 98, 139], "video engine"),
    XidGroup::application(&[82, 99, 100, 101, 102, 103, 104, 105], "JPEG engine"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_one_group_of_a_known_class() {
        let mut codes: Vec<u64> = XIDS.iter().flat_map(|group| group.codes).copied().collect();
        let all = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), all, "a code in two groups");
        for group in &XIDS {
            assert!(!group.codes.is_empty() && group.codes.is_sorted(), "{group:?}");
            assert_ne!(group.class, XidClass::Unknown, "{group:?}");
            assert!(group.concerns_memory || group.class != XidClass::Memory, "{group:?}");
        }
    }

    #[test]
    fn a_code_has_the_class_of_its_group_and_any_other_is_unknown() {
        let classes = [48, 79, 31, 999].map(XidClass::of);
        assert_eq!(classes, [XidClass::Memory, XidClass::Hardware, XidClass::Application, XidClass::Unknown]);
        assert!(XidGroup::of(31).is_some_and(|group| group.concerns_memory));
        assert!(XidGroup::of(13).is_some_and(|group| !group.concerns_memory));
    }
}
