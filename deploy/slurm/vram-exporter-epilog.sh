#!/bin/sh
# Epilog for Slurm (Epilog= in slurm.conf): appends the GPU memory report about the job on this node to the job's output.
#
# slurmd runs it as root on each node of the job, after the job's processes have ended, without a search path. A failing
# epilog takes the node out of service, so this one always succeeds. It ends within about 20 seconds, whatever the exporter and
# the file system do, and calls no Slurm command. The output is written with the rights of the job's user, because the path
# belongs to that user and can be a link to any file.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# The exporter on this node, and the program. If the exporter requires a password or TLS, add --credentials-file= and --ca-file=
# below.
URL=http://localhost:9836
PROGRAM=/usr/bin/vram-exporter

report() {
    timeout -k 1 8 "$PROGRAM" report --job="$SLURM_JOB_ID" --url="$URL" --timeout=5
}

# Reads the report and appends it to the file, which must exist and be a regular file. timeout ends it if the file system hangs.
append() {
    # shellcheck disable=SC2016  # The inner shell expands $1.
    set -- timeout -k 1 8 sh -c 'test -f "$1" && { echo; cat; } >>"$1"' sh "$SLURM_JOB_STDOUT"
    if [ "$(id -u)" = 0 ]; then
        set -- setpriv --reuid="$SLURM_JOB_UID" --regid="$SLURM_JOB_GID" --clear-groups --no-new-privs -- "$@"
    fi
    cd / && "$@"
}

# Without the path of the output (an interactive job), the user or the group, there is nowhere to write to.
if [ -n "$SLURM_JOB_ID" ] && [ -n "$SLURM_JOB_STDOUT" ] && [ -n "$SLURM_JOB_UID" ] && [ -n "$SLURM_JOB_GID" ]; then
    # A job that did not use a GPU has no report.
    text=$(report 2>/dev/null) && printf '%s\n' "$text" | append >/dev/null 2>&1
fi

exit 0
