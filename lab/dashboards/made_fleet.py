"""A made fleet of 28 GPUs to look at in the dashboards, and fleets of any size to measure queries on. None of it is measured.

    python3 lab/dashboards/made_fleet.py [--days=1] [--folder=FOLDER]

makes the fleet to look at, serves it with a Prometheus on loopback until it is interrupted, and prints the address. A second call with
the same folder serves the data that is there. The machines are those of made.py and two more.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

JUDGES = Path(__file__).resolve().parents[2] / "tests/judges"
sys.path[:0] = [str(JUDGES), str(JUDGES / "dashboards")]

import history
import made
from nodes import A100, DAY, GIB, HOUR, MINUTE, Node, between, steady


def node_c():
    """Eight A100 of a batch system, without Kubernetes and without counters of activity."""
    node = Node("node-c", kubernetes=False)
    for number in range(8):
        node.gpu(number, A100, profiled=None)
    for number, (job, user, low, high) in enumerate(
        [("51201", "ada", 60, 72), ("51201", "ada", 58, 70), ("51207", "sven", 11, 14), ("51209", "iris", 3, 4), ("51210", "iris", 20, 24)]
    ):
        node.workload(f"slurm:{job}", number, steady(low, high, f"{job}{number}"), kind="slurm", user=user)
    node.workload("user:nils", 5, between(steady(30, 34, "nils"), 5 * HOUR, 2 * HOUR), kind="user", user="nils", started=5 * HOUR)
    node.workload("user:nils", 6, lambda before: 9 * GIB, kind="user", user="nils", idle=3 * DAY, started=4 * DAY)
    return node


def node_d():
    node = Node("node-d", kubernetes=False)
    for number in range(4):
        node.gpu(number)
    return node


def to_look_at():
    for node in (made.node_a(), made.node_b(), node_c(), node_d(), made.node_e(), made.silent()):
        yield from node.finished()
    yield from made.alerts()


def of_size(workloads, per_machine=8):
    """Machines with eight H200, with one workload on each GPU; every fourth machine is outside of Kubernetes."""
    for number in range(-(-workloads // per_machine)):
        inside = number % 4 > 0
        node = Node(f"node-{number:04}", kubernetes=inside)
        for gpu in range(8):
            node.gpu(gpu)
            if number * per_machine + gpu >= workloads:
                continue
            name, where = made.kubernetes(f"team-{number % 12}", f"job-{number}-{gpu}") if inside else (f"slurm:{number}{gpu}", {})
            used = steady(20 + gpu * 10, 30 + gpu * 11, name)
            kind = "kubernetes" if inside else "slurm"
            known = {"needed": 0.8 if gpu % 2 else None, "limit": 120 if inside else None}
            node.workload(name, gpu, used, kind=kind, user=f"user-{number % 40}", **known, **where)
        yield from node.finished()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=1, help="how many days of data (default: 1)")
    parser.add_argument("--folder", type=Path, help="where the data is kept; without it, in a folder that is removed at the end")
    options = parser.parse_args()
    # Ends Prometheus too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "data").exists():
            end = int(time.time()) // MINUTE * MINUTE
            made.backfill(folder, to_look_at(), end, int(options.days * DAY), MINUTE if options.days <= 1 else 2 * MINUTE)
            # Twice, because in the first pass a rule does not see what other rules record.
            for _ in range(2):
                with history.serving(folder) as prometheus:
                    history.record(folder, prometheus.port, end, int(options.days * DAY), made.RECORDED)
            (folder / "end").write_text(f"{end}\n")
        end = int((folder / "end").read_text())
        with history.serving(folder) as prometheus:
            print(f"http://127.0.0.1:{prometheus.port} ends at {end * 1000}", flush=True)
            while True:
                time.sleep(60)


if __name__ == "__main__":
    main()
