//! Slurm.

use super::{Row, container, job, nowhere, pod, row, step, unit, with_container};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row(
            "Slurm 23.11, version 1: only the controllers that it constrains are its own",
            "12:memory:/slurm/uid_1000/job_42/step_0/task_0\n8:devices:/slurm/uid_1000/job_42/step_0/task_0\n\
             6:freezer:/slurm/uid_1000/job_42/step_0\n5:pids:/system.slice/slurmd.service\n\
             1:name=systemd:/system.slice/slurmd.service",
            step("42", "0"),
        ),
        row(
            "Slurm 20.02, version 1: proctrack/cgroup alone",
            "9:memory:/system.slice/slurmd.service\n6:freezer:/slurm/uid_1000/job_42/step_batch\n\
             1:name=systemd:/system.slice/slurmd.service",
            step("42", "batch"),
        ),
        row(
            "version 1: the memory line is at the job, the devices line at the step",
            "9:memory:/slurm/uid_1000/job_42\n8:devices:/slurm/uid_1000/job_42/step_3",
            step("42", "3"),
        ),
        row("MULTIPLE_SLURMD, version 1", "9:memory:/slurm_gpu-07/uid_1000/job_42/step_1/task_3", step("42", "1")),
        row(
            "pam_slurm_adopt, version 1: the login is a session too",
            "9:memory:/slurm/uid_1000/job_42/step_extern/task_0\n\
             1:name=systemd:/user.slice/user-1000.slice/session-3.scope",
            step("42", "extern"),
        ),
        row(
            "an interactive step, version 1",
            "10:devices:/slurm/uid_1000/job_42/step_interactive/task_0",
            step("42", "interactive"),
        ),
        row(
            "Slurm 22.05 to 25.11, version 2",
            "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
            step("42", "0"),
        ),
        row("a batch script", "0::/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0", step("42", "batch")),
        row("a step's daemon", "0::/system.slice/slurmstepd.scope/job_42/step_0/slurm", step("42", "0")),
        row(
            "pam_slurm_adopt",
            "0::/system.slice/slurmstepd.scope/job_42/step_extern/user/task_special",
            step("42", "extern"),
        ),
        row(
            "salloc with interactive steps",
            "0::/system.slice/slurmstepd.scope/job_42/step_interactive/user/task_0",
            step("42", "interactive"),
        ),
        row(
            "a heterogeneous job's second component",
            "0::/system.slice/slurmstepd.scope/job_43/step_0+1/user/task_0",
            step("43", "0+1"),
        ),
        row("MULTIPLE_SLURMD", "0::/system.slice/gpu-07_slurmstepd.scope/job_42/step_0/user/task_0", step("42", "0")),
        row(
            "cgroup.conf: CgroupSlice=batch.slice",
            "0::/batch.slice/slurmstepd.scope/job_42/step_0/user/task_0",
            step("42", "0"),
        ),
        row(
            "Slurm from 26.05 on without CgroupJobIdPaths=yes: the job's SLUID",
            "0::/system.slice/slurmstepd.scope/s0H7QZK2M9XW31/step_0/user/task_0",
            step("s0H7QZK2M9XW31", "0"),
        ),
        row(
            "not a SLUID, which never contains I, L, O or U",
            "0::/system.slice/slurmstepd.scope/s0H7QZK2M9XWU1/step_0",
            unit("slurmstepd.scope"),
        ),
        row("a job's own level", "0::/system.slice/slurmstepd.scope/job_42", job("42")),
        row("the scope's own sleeping process", "0::/system.slice/slurmstepd.scope/system", unit("slurmstepd.scope")),
        row("slurmd", "0::/system.slice/slurmd.service", unit("slurmd.service")),
        row(
            "docker --cgroup-parent in a job",
            "9:memory:/slurm/uid_1000/job_42/{A}\n1:name=systemd:/slurm/uid_1000/job_42/{A}",
            with_container(job("42"), "{A}"),
        ),
        row(
            "rootless podman in a job",
            "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0/libpod-{A}",
            with_container(step("42", "0"), "{A}"),
        ),
        row(
            "docker from a job: the daemon's container, no longer the job's",
            "0::/system.slice/docker-{A}.scope",
            container("{A}"),
        ),
        row(
            "slurmd in a pod (Slinky): the pod is outside",
            "0::/kubepods.slice/kubepods-pod{p}.slice/cri-containerd-{A}.scope/system.slice/\
             slurmstepd.scope/job_42/step_0/user",
            pod("{P}", "{A}"),
        ),
        row(
            "the same, this process in slurmd's container",
            "0::/kubepods.slice/kubepods-pod{p}.slice/cri-containerd-{A}.scope/system.slice/\
             slurmstepd.scope/job_42/step_0/user",
            step("42", "0"),
        )
        .seen_from("0::/kubepods.slice/kubepods-pod{p}.slice/cri-containerd-{A}.scope/exporter"),
        row("a directory with this name, with something else below", "0::/slurm/site/job_42/step_0", nowhere()),
        row("a directory with this name, with no user below", "0::/slurm/job_42/step_0", nowhere()),
    ]
}
