#!/bin/sh
# Prolog and epilog for Slurm (Prolog= and Epilog= in slurm.conf): keeps which GPUs are allocated to which job on this node, for
# the exporter (slurm.allocations). The folder has one file for each job that has GPUs: its name is the job's, and its content
# the UUIDs or numbers of the GPUs with commas. Whenever nothing can be kept, one line in syslog says why
# (journalctl -t vram-exporter-allocation).
#
# slurmd runs it as root on each node of the job, without a search path. A failing prolog or epilog takes the node out of
# service, so this one always succeeds. It calls no Slurm command and writes only to the folder.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# A folder that is empty after a restart of the machine.
FOLDER=/run/vram-exporter-slurm
# The job as in the name of its cgroup. From Slurm 26.05 on, with cgroup version 2 and without CgroupJobIdPaths in
# cgroup.conf, that is $SLURM_JOB_SLUID.
JOB=$SLURM_JOB_ID

# Ends the script with a line in syslog.
give_up() {
    line=$(printf 'job %s: %s' "${JOB:-unknown}" "$1" | LC_ALL=C tr -c ' -~' ' ' | cut -c1-500)
    timeout -k 1 2 logger -t vram-exporter-allocation -p daemon.warning -- "$line" 2>/dev/null || printf '%s\n' "$line" >&2
    exit 0
}

case $JOB in
'' | *[!0-9A-Za-z]*) give_up "this is not the name of a job" ;;
esac

case $SLURM_SCRIPT_CONTEXT in
prolog_slurmd)
    # A job without GPUs has neither variable. In a prolog, CUDA_VISIBLE_DEVICES has UUIDs if Slurm knows them, and otherwise the
    # numbers that SLURM_JOB_GPUS always has.
    [ -n "$SLURM_JOB_GPUS" ] || exit 0
    [ -n "$CUDA_VISIBLE_DEVICES" ] || give_up "Slurm does not set CUDA_VISIBLE_DEVICES, see Flags in gres.conf"
    umask 022
    part=$FOLDER/.$JOB.$$
    why=$({ mkdir -p "$FOLDER" && printf '%s\n' "$CUDA_VISIBLE_DEVICES" >"$part" && mv -f "$part" "$FOLDER/$JOB"; } 2>&1) ||
        give_up "its GPUs were not kept: $why"
    ;;
epilog_slurmd)
    why=$(rm -f "$FOLDER/$JOB" 2>&1) || give_up "its GPUs are kept although it has ended: $why"
    ;;
*) give_up "SLURM_SCRIPT_CONTEXT is neither prolog_slurmd nor epilog_slurmd: this is a prolog and an epilog of slurmd" ;;
esac

exit 0
