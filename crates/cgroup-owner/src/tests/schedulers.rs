//! Jobs of schedulers other than Slurm.

use super::{Row, container, job_of, nowhere, row, unit, user, with_container};
use crate::Scheduler::{HtCondor, Nomad, Oar, Pbs, Torque, Yarn};

/// A Nomad allocation.
const ALLOCATION: &str = "4744f0ea-7616-ab3a-a420-8e25056e3861";
/// A YARN container whose ResourceManager has restarted 17 times, and one of an epoch before the first restart.
const YARN: [&str; 2] = ["container_e17_1410901177871_0001_01_000005", "container_1410901177871_0001_01_000005"];

pub(super) fn rows() -> Vec<Row> {
    let nomad = |task: &str| job_of(Nomad, &format!("{ALLOCATION}{task}"));
    let allocated = |path: &str| path.replace("{N}", ALLOCATION);
    let yarn = |path: &str| path.replace("{Y}", YARN[0]);
    vec![
        row(
            "OpenPBS (pbs_cgroups.PY, _assemble_path), version 1",
            "9:memory:/pbs_jobs.service/jobid/12345.pbs\n1:name=systemd:/pbs_jobs.service/jobid/12345.pbs",
            job_of(Pbs, "12345"),
        ),
        row("another job of the same node", "9:memory:/pbs_jobs.service/jobid/12346.pbs", job_of(Pbs, "12346")),
        row(
            "OpenPBS, a part of a job array",
            "9:memory:/pbs_jobs.service/jobid/12345[7].head.example.org/child",
            job_of(Pbs, "12345[7]"),
        ),
        row("PBS on version 2", "0::/pbs_jobs.service/jobs/12345.2/child", job_of(Pbs, "12345.2")),
        row(
            "PBS on version 2, another part of the array",
            "0::/pbs_jobs.service/jobs/12345.3/child",
            job_of(Pbs, "12345.3"),
        ),
        row("PBS on version 2, the bare number", "0::/pbs_jobs.service/jobs/12345", job_of(Pbs, "12345")),
        row(
            "PBS Professional 19: a slice for each job",
            r"9:memory:/pbspro.slice/pbspro-12345\x5b7\x5d.head\x2d1.slice",
            job_of(Pbs, "12345[7]"),
        ),
        row("the service without a job", "0::/pbs_jobs.service", unit("pbs_jobs.service")),
        row("the service, something else below", "0::/pbs_jobs.service/jobid/spare", unit("pbs_jobs.service")),
        row("a number and a dot without a server", "0::/pbs_jobs.service/jobs/12345.", unit("pbs_jobs.service")),
        row("pbs_mom, jobs without the cgroups hook", "0::/system.slice/pbs.service", unit("pbs.service")),
        row(
            "rootless podman in a job of PBS",
            "0::/pbs_jobs.service/jobs/12345.pbs/libpod-{A}",
            with_container(job_of(Pbs, "12345"), "{A}"),
        ),
        row(
            "Torque 6 (trq_cgroups.c): a group for each task of a request",
            "9:memory:/torque/771.head.example.org/R0.t3\n5:cpuset:/torque/771.head.example.org/R0.t3\n\
             1:name=systemd:/system.slice/pbs_mom.service",
            job_of(Torque, "771"),
        ),
        row("Torque, a part of a job array", "5:cpuset:/torque/771[12].head", job_of(Torque, "771[12]")),
        row("Torque's own level", "5:cpuset:/torque", nowhere()),
        row(
            "HTCondor, version 1: the manual's example",
            "9:memory:/htcondor/condor_var_lib_condor_execute_slot1\n1:name=systemd:/system.slice/condor.service",
            job_of(HtCondor, "slot1"),
        ),
        row(
            "HTCondor, version 1, a part of a slot",
            "5:freezer:/htcondor/condor_scratch_slot2_slot1_4@gpu-07.example.org\n\
             1:name=systemd:/system.slice/condor.service",
            job_of(HtCondor, "slot1_4@gpu-07.example.org"),
        ),
        row(
            "HTCondor, version 2 (vanilla_proc.cpp): beside its own unit",
            "0::/system.slice/htcondor/condor_var_lib_condor_execute_slot1_23@node",
            job_of(HtCondor, "slot1_23@node"),
        ),
        row(
            "HTCondor, version 2, BASE_CGROUP below its own unit",
            "0::/system.slice/condor.service/htcondor/condor_var_lib_condor_execute_slot1_1@node/user",
            job_of(HtCondor, "slot1_1@node"),
        ),
        row(
            "HTCondor without a slot's name: the starter's pid",
            "0::/system.slice/htcondor/condor_var_lib_condor_execute_4711",
            job_of(HtCondor, "condor_var_lib_condor_execute_4711"),
        ),
        row("HTCondor itself", "0::/system.slice/condor.service", unit("condor.service")),
        row("a directory with this name, with something else below", "0::/system.slice/htcondor/slot1_1", nowhere()),
        row(
            "Nomad 1.7 (cgroupslib), version 2",
            &allocated("0::/nomad.slice/share.slice/{N}.train.scope"),
            nomad(".train"),
        ),
        row("Nomad 1.7, reserved cores", &allocated("0::/nomad.slice/reserve.slice/{N}.load.scope"), nomad(".load")),
        row("Nomad 1.3 to 1.6, version 2", &allocated("0::/nomad.slice/{N}.train.scope"), nomad(".train")),
        row(
            "Nomad 1.7, version 1: cpuset has one level more",
            &allocated(
                "9:memory:/nomad/{N}.train\n5:cpuset:/nomad/share/{N}.train\n1:name=systemd:/system.slice/nomad.service",
            ),
            nomad(".train"),
        ),
        row("Nomad, version 1, cpuset alone", &allocated("5:cpuset:/nomad/reserve/{N}.train"), nomad(".train")),
        row("Nomad before 1.7, version 1: a UUID of the executor", &allocated("9:memory:/nomad/{N}"), nomad("")),
        row("Nomad, docker driver", "0::/nomad.slice/docker-{A}.scope", container("{A}")),
        row("Nomad itself", "0::/system.slice/nomad.service", unit("nomad.service")),
        row(
            "a scope of an administrator in Nomad's slice",
            "0::/nomad.slice/share.slice/8f2d.train.scope",
            unit("8f2d.train.scope"),
        ),
        row(
            "OAR 2.5 (IO.pm, get_job_cpuset_name; CPUSET_PATH is /oar), version 1",
            "9:cpuset:/oar/ada_4242\n8:devices:/oar/ada_4242\n1:name=systemd:/system.slice/oar-node.service",
            job_of(Oar, "4242"),
        ),
        row("OAR, a user's name with underscores", "8:devices:/oar/ada_de_l_4242/1", job_of(Oar, "4242")),
        row(
            "OAR 3 (job_resource_manager_systemd.pl, oarsh_shell.in), version 2",
            "0::/oar.slice/oar-u1000.slice/oar-u1000-j4242.slice/oar-u1000-j4242-p12345.scope",
            job_of(Oar, "4242"),
        ),
        row(
            "OAR 3, a part of the job's GPUs (OAR_USER_GPUDEVICE)",
            "0::/oar.slice/oar-u1000.slice/oar-u1000-j4242.slice/oar-u1000-j4242-t77.slice/oar-u1000-j4242-t77-p9.scope",
            job_of(Oar, "4242"),
        ),
        row(
            "OAR 3 on NixOS (job_resource_manager_cgroups-v2_nixos.pl)",
            "0::/oar.slice/ada_4242.scope",
            job_of(Oar, "4242"),
        ),
        row("OAR's own level", "9:cpuset:/oar", nowhere()),
        row("OAR, a directory without a job's number", "9:cpuset:/oar/ada_", nowhere()),
        row("OAR, a directory without a user", "9:cpuset:/oar/_4242", nowhere()),
        row("OAR's slice of a user, without a job", "0::/oar.slice/oar-u1000.slice", nowhere()),
        row(
            "OAR, a slice of another user below a user's",
            "0::/oar.slice/oar-u1000.slice/oar-u1001-j4242.slice/x.scope",
            unit("x.scope"),
        ),
        row("OAR itself", "0::/system.slice/oar-node.service", unit("oar-node.service")),
        row(
            "YARN (AbstractCGroupsHandler.java, getPathForCGroup), version 2",
            &yarn("0::/hadoop-yarn/{Y}"),
            job_of(Yarn, YARN[0]),
        ),
        row(
            "YARN, version 1: only what it limits; before the first restart of the ResourceManager (ContainerId.java)",
            "9:devices:/hadoop-yarn/container_1410901177871_0001_01_000005\n\
             1:name=systemd:/system.slice/hadoop-yarn-nodemanager.service",
            job_of(Yarn, YARN[1]),
        ),
        row(
            "YARN, cgroups.hierarchy as HDP 2.6.5 and UsingGpus.md set it",
            &yarn("9:devices:/yarn/{Y}"),
            job_of(Yarn, YARN[0]),
        ),
        row(
            "YARN, Docker's containers (DockerLinuxContainerRuntime.java, cgroup-parent)",
            &yarn("0::/hadoop-yarn/{Y}/{A}"),
            with_container(job_of(Yarn, YARN[0]), "{A}"),
        ),
        row("YARN in a slice", &yarn("0::/yarn.slice/{Y}"), job_of(Yarn, YARN[0])),
        row(
            "YARN, more containers than six digits can count",
            "0::/hadoop-yarn/container_e102_1410901177871_12345_11_1048577",
            job_of(Yarn, "container_e102_1410901177871_12345_11_1048577"),
        ),
        row("YARN's own level", "0::/hadoop-yarn", nowhere()),
        row("YARN, no number of a container", "0::/hadoop-yarn/container_1410901177871_0001_01", nowhere()),
        row("YARN, numbers that are too short", "0::/hadoop-yarn/container_1410901177871_1_1_5", nowhere()),
        row("YARN, a number too many", &yarn("0::/hadoop-yarn/{Y}_1"), nowhere()),
        row("YARN, an epoch without digits", "0::/hadoop-yarn/container_e_1410901177871_0001_01_000005", nowhere()),
        row(
            "the NodeManager",
            "0::/system.slice/hadoop-yarn-nodemanager.service",
            unit("hadoop-yarn-nodemanager.service"),
        ),
        row(
            "YARN's hierarchy in the NodeManager's own unit: the unit is outside",
            &yarn("0::/system.slice/hadoop-yarn-nodemanager.service/{Y}"),
            unit("hadoop-yarn-nodemanager.service"),
        ),
        row(
            "PBS in a user's session: the login is outside",
            "0::/user.slice/user-1000.slice/session-3.scope/pbs_jobs.service/jobs/1.head",
            user("session-3.scope"),
        ),
        row("a job of PBS seen from a container", "0::/../../pbs_jobs.service/jobs/12345.head", job_of(Pbs, "12345"))
            .seen_from("0::/"),
    ]
}
