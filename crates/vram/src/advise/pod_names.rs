//! The name of what created a pod, from the pod's name.
//!
//! Invariants: at least the first part of the name stays; all pods of a Deployment get one name, whatever its length.
//!
//! Not knowable from a name that Kubernetes has cut: what of the creator's name follows the 58th character, and whether a last
//! part of digits or of a hash's characters is the beginning of a hash or time, or the end of the creator's name. Two creators
//! whose names differ only there are one.

/// The characters of the random suffixes that Kubernetes generates (`k8s.io/apimachinery/pkg/util/rand`).
const RANDOM: &str = "bcdfghjklmnpqrstvwxz2456789";
/// The length of a random suffix.
const RANDOM_LENGTH: usize = 5;
/// The most characters of a name that Kubernetes keeps before a random suffix, the hyphen included
/// (`k8s.io/apiserver/pkg/storage/names`).
const BASE_LENGTH: usize = 58;
/// The characters of a ReplicaSet's hash: the digits of a number, encoded in [`RANDOM`].
const HASH: &str = "456789bcdf";

/// The name without the parts that a Deployment, a DaemonSet, a Job, a CronJob or a StatefulSet has generated.
pub(super) fn without_generated_parts(pod: &str) -> &str {
    let last = |name: &'_ str| name.rfind('-').filter(|at| *at > 0);
    if let Some(base) = cut_base(pod) {
        // The hash or the number is cut, too.
        return match last(base) {
            Some(at) if is_of(&base[at + 1..], HASH, 1..=10) || is_number(&base[at + 1..], 10) => &base[..at],
            _ => base,
        };
    }
    let Some(at) = last(pod) else { return pod };
    let (name, suffix) = (&pod[..at], &pod[at + 1..]);
    if !is_of(suffix, RANDOM, RANDOM_LENGTH..=RANDOM_LENGTH) {
        return if is_number(suffix, 5) { name } else { pod };
    }
    match last(name) {
        Some(at) if is_of(&name[at + 1..], HASH, 6..=10) || is_number(&name[at + 1..], 10) => &name[..at],
        _ => name,
    }
}

/// What precedes the random suffix of a name that Kubernetes has cut: without the hyphen between both.
fn cut_base(pod: &str) -> Option<&str> {
    let (base, suffix) = pod.split_at_checked(BASE_LENGTH)?;
    (!base.ends_with('-') && is_of(suffix, RANDOM, RANDOM_LENGTH..=RANDOM_LENGTH)).then_some(base)
}

fn is_of(text: &str, characters: &str, length: std::ops::RangeInclusive<usize>) -> bool {
    length.contains(&text.len()) && text.chars().all(|c| characters.contains(c))
}

fn is_number(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Kubernetes makes the name of a pod from that of its creator, a ReplicaSet, a Job or a DaemonSet.
    fn pod(creator: &str, random: &str) -> String {
        let base = format!("{creator}-");
        format!("{}{random}", &base[..base.len().min(BASE_LENGTH)])
    }

    /// A name of this length whose parts look like nothing generated.
    fn name(length: usize, begin: &str) -> String {
        format!("{begin}{}", "-serve-a-model".repeat(5))[..length].replace("--", "-a").trim_end_matches('-').to_owned()
    }

    #[test]
    fn pods_of_one_creator_of_any_length_have_one_name() {
        const RANDOMS: [&str; 3] = ["x2zvq", "bcdfg", "44444"];
        for length in 40..=63 {
            let (one, other) = (name(length, "llama"), name(length, "qwen3"));
            let expected = |name: &str| name[..name.len().min(BASE_LENGTH)].to_owned();
            for (name, is) in [(&one, expected(&one)), (&other, expected(&other))] {
                // The ReplicaSets of a Deployment: a hash is the digits of a number, at most 10 of them.
                for hash in ["7d4b9c8f", "7d4b9c8f6", "6d4cf56db6", "bf54689c5d"] {
                    for random in RANDOMS {
                        let pod = pod(&format!("{name}-{hash}"), random);
                        assert_eq!(without_generated_parts(&pod), is, "{pod}");
                    }
                }
                for random in RANDOMS {
                    let pod = pod(name, random);
                    assert_eq!(without_generated_parts(&pod), is, "a Job or DaemonSet: {pod}");
                }
                if name.len() <= 52 {
                    for random in RANDOMS {
                        let pod = pod(&format!("{name}-29483460"), random);
                        assert_eq!(without_generated_parts(&pod), is, "a CronJob: {pod}");
                    }
                }
                // A StatefulSet's pods have no random suffix, and their names are never cut.
                for ordinal in ["0", "12", "24567"] {
                    assert_eq!(without_generated_parts(&format!("{name}-{ordinal}")), *name, "{name}");
                }
            }
            assert_ne!(expected(&one), expected(&other));
        }
    }

    #[test]
    fn only_generated_parts_are_removed() {
        for (pod, name) in [
            // A Deployment.
            ("llama-7d4b9c8f6-x2zvq", "llama"),
            ("llama-3-6d4cf56db6-bcdfg", "llama-3"),
            // A DaemonSet, a Job.
            ("agent-x2zvq", "agent"),
            // A CronJob, an indexed Job.
            ("nightly-28943460-x2zvq", "nightly"),
            ("sweep-12-x2zvq", "sweep"),
            // A StatefulSet, a PyTorchJob.
            ("db-0", "db"),
            ("train-worker-3", "train-worker"),
            // Names that a person chose.
            ("trainer", "trainer"),
            ("llama-3-8b", "llama-3-8b"),
            ("my-notebook", "my-notebook"),
            ("x-abcde", "x-abcde"),
            ("-0", "-0"),
            ("", ""),
            ("a-x2zvq", "a"),
            ("7d4b9c8f6-x2zvq", "7d4b9c8f6"),
            ("日本-0", "日本"),
        ] {
            assert_eq!(without_generated_parts(pod), name, "{pod}");
        }
    }
}
