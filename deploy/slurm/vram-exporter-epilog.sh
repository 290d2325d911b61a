#!/bin/sh
# Epilog for Slurm (Epilog= in slurm.conf): appends the GPU memory report about the job on this node to the job's output. Whenever
# nothing is appended, one line in syslog says why (journalctl -t vram-exporter-epilog).
#
# slurmd runs it as root on each node of the job, after the job's processes have ended, without a search path. A failing
# epilog takes the node out of service, so this one always succeeds. It ends within about 20 seconds, whatever the exporter and
# the file system do, and calls no Slurm command. The output is written with the rights of the job's user, because the path
# belongs to that user and can be a link to any file.

PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin
export PATH

# The exporter on this node, and the tool vram; empty: vram is searched for in PATH. If the exporter requires a password or TLS,
# add --http-config= below, with a file as docs/sizing.md describes it.
URL=http://localhost:9836
PROGRAM=

# Ends the script with a line in syslog: PRIORITY WHY. The text can contain a path, which the job's user chose.
give_up() {
    line=$(printf 'job %s: nothing was written: %s' "${SLURM_JOB_ID:-unknown}" "$2" | LC_ALL=C tr -c ' -~' ' ' | cut -c1-500)
    timeout -k 1 2 logger -t vram-exporter-epilog -p "daemon.$1" -- "$line" 2>/dev/null || printf '%s\n' "$line" >&2
    exit 0
}

report() {
    timeout -k 1 8 "$PROGRAM" report --job="$SLURM_JOB_ID" --url="$URL" --timeout=5
}

# Reads the report and appends it to the file, which must exist and be a regular file. timeout ends it if the file system hangs.
append() {
    # shellcheck disable=SC2016  # The inner shell expands $1.
    set -- timeout -k 1 8 sh -c 'test -f "$1" || { echo "the output is not a regular file that exists"; exit 1; } >&2
        { echo; cat; } >>"$1"' sh "$SLURM_JOB_STDOUT"
    if [ "$(id -u)" = 0 ]; then
        set -- setpriv --reuid="$SLURM_JOB_UID" --regid="$SLURM_JOB_GID" --clear-groups --no-new-privs -- "$@"
    fi
    cd / && "$@"
}

[ -n "$SLURM_JOB_ID" ] || give_up warning "SLURM_JOB_ID is not set: this script is an epilog of Slurm"
[ -n "$SLURM_JOB_STDOUT" ] || give_up info "SLURM_JOB_STDOUT is not set: the job has no output file, or this Slurm does not name it"
if [ -z "$SLURM_JOB_UID" ] || [ -z "$SLURM_JOB_GID" ]; then
    give_up warning "SLURM_JOB_UID or SLURM_JOB_GID is not set, so the rights of the job's user are unknown"
fi
[ -n "$PROGRAM" ] || PROGRAM=$(command -v vram) ||
    give_up warning "there is no vram in $PATH; set PROGRAM in $0"
[ -x "$PROGRAM" ] || give_up warning "$PROGRAM cannot be executed; correct PROGRAM in $0"

text=$(report 2>&1)
case $? in
0) ;;
# The exporter knows no such job: it did not use a GPU.
2) give_up info "$text" ;;
124 | 137) give_up warning "$PROGRAM did not end within 8 s" ;;
*) give_up warning "$text" ;;
esac

why=$(printf '%s\n' "$text" | append 2>&1)
case $? in
0) ;;
124 | 137) give_up warning "the output could not be written within 8 s" ;;
*) give_up warning "${why:-the output cannot be written}" ;;
esac

exit 0
