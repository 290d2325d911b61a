//! What the figures of a failed allocation prove, in sentences.
//!
//! Invariants: a sentence is arithmetic on figures that the process reported, of the moments that it names; nothing is
//! guessed or advised; no name can send control characters to a terminal.

use crate::format::bytes;
use crate::recorder::history::peak::SAME_MOMENT;
use crate::recorder::history::{Failure, FailureSites};
use crate::text::printable;

/// The sentences about a failure; none if no framework reported it.
pub(super) fn facts(failed: &Failure) -> Vec<String> {
    if failed.framework.is_none() {
        return Vec::new();
    }
    let memory = failed.memory.as_deref();
    let about = [asked(failed, memory), slack(failed)];
    let looked = [memory.and_then(largest_role), memory.and_then(growth), memory.and_then(largest_module)];
    about.into_iter().chain(looked).flatten().collect()
}

/// `, 0.2 s before the failure`: when the look arrived; empty if at the same moment.
fn when(memory: &FailureSites) -> String {
    let before = memory.seconds_before;
    if before < SAME_MOMENT { String::new() } else { format!(", {before:.1} s before the failure") }
}

/// `train.py:12 step asked for 2.00 GiB. It had allocated 20.00 GiB of the live memory, 0.2 s before the failure.`
fn asked(failed: &Failure, memory: Option<&FailureSites>) -> Option<String> {
    let by = failed.asked_by.as_deref()?;
    let own = |memory: &FailureSites| {
        let of_it = memory.sites.iter().filter(|known| known.site == by).map(|known| known.bytes);
        let held = of_it.reduce(u64::saturating_add)?;
        Some(format!(" It had allocated {} of the live memory{}.", bytes(held), when(memory)))
    };
    let own = memory.and_then(own).unwrap_or_default();
    Some(format!("{} asked for {}.{own}", printable(by), bytes(failed.requested_bytes)))
}

/// `The request was 2.00 GiB: 3.10 GiB of the 30.00 GiB reserved were not allocated (slack), and the largest free block had
/// 900 MiB.`
fn slack(failed: &Failure) -> Option<String> {
    let slack = failed.reserved_bytes.zip(failed.allocated_bytes).and_then(|(reserved, allocated)| {
        let slack = bytes(reserved.checked_sub(allocated)?);
        Some(format!("{slack} of the {} reserved were not allocated (slack)", bytes(reserved)))
    });
    let block = failed.largest_free_block_bytes.map(|block| format!("the largest free block had {}", bytes(block)));
    let parts: Vec<String> = [slack, block].into_iter().flatten().collect();
    let request = bytes(failed.requested_bytes);
    (!parts.is_empty()).then(|| format!("The request was {request}: {}.", parts.join(", and ")))
}

/// `31.00 GiB of the 44.00 GiB counted by role were activations, 0.2 s before the failure.`
fn largest_role(memory: &FailureSites) -> Option<String> {
    let roles = memory.largest();
    let (role, most) = *roles.first()?;
    let all = roles.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    let role = role.replace('_', " ");
    let role = if role == "unknown" { "of unknown role" } else { &role };
    Some(format!("{} of the {} counted by role were {role}{}.", bytes(most), bytes(all), when(memory)))
}

/// `train.py:12 step (activations) grew by 5.20 GiB within the 12 s before the process last looked, 0.2 s before the
/// failure.`
fn growth(memory: &FailureSites) -> Option<String> {
    let grew = memory.grew.as_ref()?;
    let what = grew.sites.first().map_or_else(
        || "No call site grew".to_owned(),
        |most| format!("{} ({}) grew by {}", printable(&most.site), most.role.replace('_', " "), bytes(most.bytes)),
    );
    let (within, when) = (grew.seconds, when(memory));
    Some(format!("{what} within the {within} s before the process last looked{when}."))
}

/// `412 MiB of the 3.20 GiB counted by module belonged to blocks.3.mlp, 0.2 s before the failure.` Absent if the memory of
/// the other modules is not known.
fn largest_module(memory: &FailureSites) -> Option<String> {
    let most = memory.modules.first()?;
    let listed = memory.modules.iter().map(|module| module.bytes);
    let all = listed.fold(memory.other_modules_bytes?, u64::saturating_add);
    let (held, all, when) = (bytes(most.bytes), bytes(all), when(memory));
    Some(format!("{held} of the {all} counted by module belonged to {}{when}.", printable(&most.module)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::history::{ModuleUse, SiteUse, SitesGrown};

    const GIB: u64 = 1 << 30;

    fn site(site: &str, role: &str, bytes: u64) -> SiteUse {
        SiteUse { site: site.into(), role: role.into(), bytes }
    }

    fn failed() -> Failure {
        let memory = FailureSites {
            seconds_before: 0.25,
            roles: [("activations", 31), ("parameters", 13), ("unknown", 0)]
                .map(|(role, gib)| (role.to_owned(), gib * GIB))
                .into(),
            sites: vec![
                site("train.py:12 step", "activations", 20 * GIB),
                site("train.py:12 step", "gradients", GIB),
                site("train.py:3 load", "parameters", 10 * GIB),
            ],
            grew: Some(SitesGrown { seconds: 12, sites: vec![site("train.py:12 step", "kv_cache", 5 * GIB)] }),
            modules: vec![ModuleUse { module: "blocks.3\u{202e}".into(), bytes: 3 * GIB }],
            other_modules_bytes: Some(GIB),
            ..FailureSites::default()
        };
        Failure {
            framework: Some("pytorch".into()),
            requested_bytes: 2 * GIB,
            allocated_bytes: Some(44 * GIB),
            reserved_bytes: Some(47 * GIB),
            largest_free_block_bytes: Some(GIB),
            asked_by: Some("train.py:12 step".into()),
            memory: Some(Box::new(memory)),
            ..Failure::default()
        }
    }

    #[test]
    fn each_sentence_is_what_the_figures_prove() {
        let expected = [
            "train.py:12 step asked for 2.00 GiB. It had allocated 21.00 GiB of the live memory, 0.2 s before the failure.",
            "The request was 2.00 GiB: 3.00 GiB of the 47.00 GiB reserved were not allocated (slack), and the largest free \
             block had 1.00 GiB.",
            "31.00 GiB of the 44.00 GiB counted by role were activations, 0.2 s before the failure.",
            "train.py:12 step (kv cache) grew by 5.00 GiB within the 12 s before the process last looked, 0.2 s before \
             the failure.",
            "3.00 GiB of the 4.00 GiB counted by module belonged to blocks.3\\u{202e}, 0.2 s before the failure.",
        ];
        assert_eq!(facts(&failed()), expected);
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let refused = Failure { framework: None, ..failed() };
        assert_eq!(facts(&refused), [""; 0], "the driver refused a request: there are no figures of an allocator");
        let bare = Failure { framework: Some("jax".into()), requested_bytes: GIB, ..Failure::default() };
        assert_eq!(facts(&bare), [""; 0]);
        let without_block = Failure { largest_free_block_bytes: None, memory: None, asked_by: None, ..failed() };
        let slack = "The request was 2.00 GiB: 3.00 GiB of the 47.00 GiB reserved were not allocated (slack).";
        assert_eq!(facts(&without_block), [slack]);
        // Figures that contradict each other are no slack.
        let less = Failure { reserved_bytes: Some(GIB), ..without_block };
        assert_eq!(facts(&less), [""; 0]);
        let only_block = Failure { largest_free_block_bytes: Some(5), ..less };
        assert_eq!(facts(&only_block), ["The request was 2.00 GiB: the largest free block had 5 B."]);
        let look = |change: fn(&mut FailureSites)| {
            let mut failed = Failure { reserved_bytes: None, largest_free_block_bytes: None, ..failed() };
            change(failed.memory.as_deref_mut().unwrap());
            facts(&failed)
        };
        let unknown = look(|memory| {
            *memory = FailureSites { roles: [("unknown".to_owned(), GIB)].into(), ..FailureSites::default() };
        });
        let sentence = "1.00 GiB of the 1.00 GiB counted by role were of unknown role.";
        assert_eq!(unknown, ["train.py:12 step asked for 2.00 GiB.", sentence]);
        let still = look(|memory| {
            memory.grew = Some(SitesGrown { seconds: 3, sites: Vec::new() });
            memory.other_modules_bytes = None;
        });
        let none = "No call site grew within the 3 s before the process last looked, 0.2 s before the failure.";
        assert_eq!(still.last().unwrap(), none, "nor a share of modules of which the rest is not known");
    }
}
