//! The kinds of incidents: the only list of them in the program.
//!
//! Invariant: what is said about a kind is in its entry here. `tests/it/declared_once.rs` writes the lists in the pages, in
//! the description of the API and in the exporter's page from this table, and names the rule, the runbook or the dashboard
//! that lacks a kind.

use serde::{Deserialize, Serialize};

use crate::closed_enum::closed_enum;

/// Declares the kinds. An entry is the variant, the value of the label, the kind in words and the condition under which such
/// an incident is recorded.
macro_rules! kinds {
    ($($variant:ident $label:literal, $words:literal, $when:literal;)+) => {
        closed_enum! {
            /// Why an incident was recorded: the label `kind`.
            #[derive(Serialize, Deserialize)]
            pub enum IncidentKind {
                $(#[doc = $when] #[serde(rename = $label)] $variant => $label,)+
            }
        }

        impl IncidentKind {
            /// Every kind as the introduction of its families names it: the label, and in brackets the words.
            pub const LIST: &'static [&'static str] = &[$(concat!("`", $label, "` (", $words, ")")),+];

            /// The kind in words, for people.
            pub fn words(self) -> &'static str {
                match self { $(Self::$variant => $words),+ }
            }

            /// When such an incident is recorded, in Markdown.
            pub fn when(self) -> &'static str {
                match self { $(Self::$variant => $when),+ }
            }
        }
    };
}

kinds! {
    EndedAtPeak "ended_at_peak", "ended at the memory limit",
        "a process ended within 5 s of the last time at which its memory use was at its highest, its GPU or MIG device was at least 95 % full at some time during those seconds, and in the 10 s before, this or another process on the device had grown by more than was left";
    OutOfMemory "out_of_memory", "out of memory",
        "a process on the GPU reported that a framework in the process could not allocate memory, or, with `memory.probes`, the driver refused a request of a process; failures of one process within 5 s belong to one incident. If that process then ends, its end is not recorded as an `ended_at_peak` incident as well";
    NearLimit "near_limit", "nearly full",
        "the memory in use on a GPU or MIG device reached 98 % of what can be allocated; the next such incident is recorded only after the memory in use has been below 95 %";
    GpuLost "gpu_lost", "GPU lost",
        "a GPU stopped responding";
    MemoryXid "memory_xid", "memory error",
        "the driver reported an Xid that concerns memory";
    OnDemand "on_demand", "requested",
        "a client requested it with `POST /api/v1/incidents`, which is allowed only if the [web-config file](web-config.md) requires a password or a client certificate";
}
