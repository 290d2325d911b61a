//! In which cgroup the processes of each workload are.

use std::collections::HashMap;
use std::path::Path;

use super::workload_entry::WorkloadMember;
use crate::snapshot::Workload;

/// The cgroup of each workload on the GPU itself, not on a MIG device. It is `None` for a workload whose processes are in
/// several cgroups, or one of whose cgroups is unknown: no single limit applies to all of its memory.
pub(super) fn cgroups<'m>(members: &[WorkloadMember<'m>]) -> HashMap<&'m Workload, Option<&'m Path>> {
    let mut cgroups = HashMap::new();
    for member in members.iter().filter(|member| member.alive && member.instance.is_none()) {
        let own = member.cgroup.map(|path| &**path);
        let known = cgroups.entry(&**member.workload).or_insert(own);
        if *known != own {
            *known = None;
        }
    }
    cgroups
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::snapshot::WorkloadKind;

    #[test]
    fn a_workload_has_a_cgroup_only_if_all_its_processes_are_in_it() {
        let unit = |name: &str| Arc::new(Workload { name: name.to_owned(), kind: WorkloadKind::Systemd, pod: None });
        let path = |text: &str| Arc::<Path>::from(Path::new(text));
        let (a, again, b) = (path("/a"), path("/a"), path("/b"));
        let (same, several, unknown, late) = (unit("same"), unit("several"), unit("unknown"), unit("late"));
        let of = |workload, cgroup| WorkloadMember {
            pid: 1,
            instance: None,
            mig: None,
            workload,
            before: None,
            alive: true,
            used: None,
            limit: None,
            cgroup,
        };
        let ended = WorkloadMember { alive: false, ..of(&same, Some(&b)) };
        let on_mig = WorkloadMember { instance: Some((1, 0)), ..of(&late, Some(&a)) };
        let members = [
            of(&same, Some(&a)),
            ended,
            of(&same, Some(&again)),
            of(&several, Some(&a)),
            of(&several, Some(&b)),
            of(&several, Some(&a)),
            of(&unknown, Some(&a)),
            of(&unknown, None),
            on_mig,
        ];
        let found = cgroups(&members);
        assert_eq!(found.get(&*same), Some(&Some(Path::new("/a"))));
        assert_eq!((found.get(&*several), found.get(&*unknown)), (Some(&None), Some(&None)));
        assert_eq!(found.get(&*late), None);
    }
}
