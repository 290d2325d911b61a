//! The name of what created a pod, from the pod's name.
//!
//! Invariant: at least the first part of the name stays.

/// The characters of the random suffixes that Kubernetes generates (`k8s.io/apimachinery/pkg/util/rand`).
const RANDOM: &str = "bcdfghjklmnpqrstvwxz2456789";
/// The length of a random suffix.
const RANDOM_LENGTH: usize = 5;
/// The characters of a ReplicaSet's hash: the digits of a number, encoded in [`RANDOM`].
const HASH: &str = "456789bcdf";

/// The name without the parts that a Deployment, a DaemonSet, a Job, a CronJob or a StatefulSet has generated.
pub(super) fn without_generated_parts(pod: &str) -> &str {
    let last = |name: &'_ str| name.rfind('-').filter(|at| *at > 0);
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

fn is_of(text: &str, characters: &str, length: std::ops::RangeInclusive<usize>) -> bool {
    length.contains(&text.len()) && text.chars().all(|c| characters.contains(c))
}

fn is_number(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

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
