"""The simulated machine, as a scenario for the simulator: GPUs with identical processes, a few of which change their memory use.

The sizes are small, so that 512 processes fit on a GPU and a spike of 2 GiB stands out."""

MODEL = "H200"
MIB_EACH = 60
# One in this many processes changes its memory, by at most MOVE_MIB, every MOVE_MS.
ONE_IN = 16
MOVE_MIB = 16
MOVE_MS = 700


def runs(pids):
    """(first, count) of each run of consecutive pids."""
    found = []
    for pid in sorted(pids):
        if found and pid == sum(found[-1]):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((pid, 1))
    return found


def processes(gpu, pids, memory, utilization):
    for first, count in runs(pids):
        yield f"""
[[process]]
gpu = {gpu}
pid = {first}
count = {count}
command = ["/usr/bin/python3", "serve.py", "--gpu={gpu}"]
user = "serve"
context = "{MIB_EACH}MiB"
memory = {memory}
utilization = {utilization}
"""


def text(gpus, pids):
    """`pids` are distributed evenly over the GPUs."""
    parts = [f'seed = 1\n\n[[gpu]]\nmodel = "{MODEL}"\ncount = {gpus}\n']
    each = len(pids) // gpus
    for gpu in range(gpus):
        mine = sorted(pids)[gpu * each : (gpu + 1) * each]
        restless = max(1, each // ONE_IN) if mine else 0
        noise = f'[{{ kind = "noise", low = "{MIB_EACH - MOVE_MIB}MiB", high = "{MIB_EACH}MiB", every = "{MOVE_MS}ms" }}]'
        parts += processes(gpu, mine[restless:], f'"{MIB_EACH}MiB"', "0.01")
        parts += processes(gpu, mine[:restless], noise, "0.02")
    return "".join(parts)


def constant(mib, milliseconds):
    return f'{{ kind = "constant", value = "{mib}MiB", for = "{milliseconds}ms" }}'


def spiking(pid, moments, hold_ms):
    """A process on GPU 0 that makes one spike at each given time: (milliseconds of scenario time, MiB)."""
    # The process starts a second before the first spike, so that its start is not part of the spike.
    start = moments[0][0] - 1000
    phases, over = [], start
    for begin, mib in moments:
        phases.append(constant(0, begin - over))
        phases.append(constant(mib, hold_ms))
        over = begin + hold_ms
    phases.append('{ kind = "constant", value = "0MiB" }')
    return f"""
[[process]]
gpu = 0
pid = {pid}
start = "{start}ms"
command = ["/usr/bin/python3", "spikes.py"]
context = "{MIB_EACH}MiB"
memory = [{", ".join(phases)}]
"""
