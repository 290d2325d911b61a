//! Which runs are judged together.

use std::collections::BTreeMap;

use gpu_readings::snapshot::WorkloadKind;

use super::arguments::By;
use super::history::{History, Run};
use super::pod_names::without_generated_parts;
use super::run_key::RunKey;

/// What identifies a group. The order is that of the output.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey {
    pub(super) cluster: Option<String>,
    pub(super) kind: String,
    pub(super) workload: String,
}

/// The runs of a group.
pub(super) type Members<'a> = Vec<(&'a RunKey, &'a Run)>;

/// The runs by group, and the number of runs that belong to none.
pub(super) fn groups(history: &History, by: By) -> (BTreeMap<GroupKey, Members<'_>>, u64) {
    let mut groups: BTreeMap<GroupKey, Members<'_>> = BTreeMap::new();
    let mut left_out = history.others;
    for (key, run) in &history.runs {
        let names = names(key, run, by);
        if names.is_empty() {
            left_out += 1;
        }
        let kind = if by == By::User { WorkloadKind::User.label() } else { &key.kind };
        for workload in names {
            let group = GroupKey { cluster: key.cluster.clone(), kind: kind.to_owned(), workload };
            groups.entry(group).or_default().push((key, run));
        }
    }
    (groups, left_out)
}

/// The names of the groups that a run belongs to. Only users can be several.
fn names(key: &RunKey, run: &Run, by: By) -> Vec<String> {
    let kind = WorkloadKind::of(&key.kind);
    let is_pod = kind == Some(WorkloadKind::Kubernetes);
    match by {
        By::Workload if is_pod => vec![without_pod(&key.workload)],
        By::Workload => vec![key.workload.clone()],
        By::Pod if is_pod => vec![key.workload.clone()],
        By::Job if kind.is_some_and(WorkloadKind::is_job) => vec![without_index(&key.workload).to_owned()],
        By::Pod | By::Job => Vec::new(),
        By::User => run.users.iter().cloned().collect(),
    }
}

/// `namespace/name/container`: what created the pod instead of the pod. A label that was cut has another form and stays.
fn without_pod(workload: &str) -> String {
    match workload.split('/').collect::<Vec<_>>()[..] {
        [namespace, pod, container] => format!("{namespace}/{}/{container}", without_generated_parts(pod)),
        _ => workload.to_owned(),
    }
}

/// A job without its index in the job array, `pbs:12[7]`.
fn without_index(job: &str) -> &str {
    let array = job.strip_suffix(']').and_then(|rest| rest.rsplit_once('['));
    array
        .filter(|(_, index)| !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(job, |(job, _)| job)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(runs: &[(&str, &str, &[&str])]) -> History {
        let runs = runs.iter().map(|(kind, workload, users)| {
            let key = RunKey {
                cluster: None,
                workload: (*workload).to_owned(),
                kind: (*kind).to_owned(),
                uuid: "GPU-1".to_owned(),
                mig_uuid: None,
            };
            (key, Run { users: users.iter().map(|user| (*user).to_owned()).collect(), ..Run::default() })
        });
        History { runs: runs.collect(), others: 1 }
    }

    #[test]
    fn each_grouping_has_its_names() {
        let history = history(&[
            ("kubernetes", "ml/llama-7d4b9c8f6-x2zvq/main", &["root"]),
            ("kubernetes", "ml/llama-7d4b9c8f6-c4zvq/main", &["root", "ada"]),
            ("kubernetes", "cut~0123456789abcdef", &[]),
            ("job", "pbs:12[7]", &["ada"]),
            ("slurm", "slurm:5", &[]),
            ("job", "condor:slot[x]", &[]),
            ("user", "user:bob", &["bob"]),
        ]);
        let of = |by| {
            let (groups, left_out) = groups(&history, by);
            let named =
                groups.iter().map(|(key, members)| format!("{} {}", key.workload, members.len())).collect::<Vec<_>>();
            (named.join(", "), left_out)
        };
        let all = "condor:slot[x] 1, pbs:12[7] 1, cut~0123456789abcdef 1, ml/llama/main 2, slurm:5 1, user:bob 1";
        assert_eq!(of(By::Workload), (all.to_owned(), 1));
        let pods = "cut~0123456789abcdef 1, ml/llama-7d4b9c8f6-c4zvq/main 1, ml/llama-7d4b9c8f6-x2zvq/main 1";
        assert_eq!(of(By::Pod), (pods.to_owned(), 5));
        assert_eq!(of(By::Job), ("condor:slot[x] 1, pbs:12 1, slurm:5 1".to_owned(), 5));
        assert_eq!(of(By::User), ("ada 2, bob 1, root 2".to_owned(), 4));
    }
}
