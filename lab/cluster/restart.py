#!/usr/bin/env python3
"""Measures how soon pods get their names back after an outage of a real API server. See README.md."""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/judges/cluster"))

from harness import ROOT, arguments, skipped
from server import Cluster, binaries, missing, until
from simulated import ACCOUNT, TEAM, Exporter, container_id, one_gpu

AWAY = 25.0
LIMIT = 4.0


def prepare(cluster):
    """Applies the shipped manifests and creates a namespace for pods. No controller runs here to create accounts or pods."""
    manifests = cluster.kubectl("kustomize", str(ROOT / "deploy/kubernetes/base"))
    cluster.kubectl("apply", "--filename=-", given=manifests)
    cluster.create_namespace(TEAM)
    cluster.create_account(TEAM, "default")


def round_of(cluster, exporter, n):
    """Stops the server and starts it again. Returns the seconds from its readiness until the new pod's name is shown."""
    pod, before, log = f"after-{n}", exporter.faults(), len(exporter.logged())
    cluster.stop()
    begin = time.monotonic()
    cluster.move_on()
    until("the exporter notices", lambda: "vram_exporter_kubernetes_api_up 0" in exporter.metrics())
    noticed = time.monotonic() - begin
    time.sleep(max(0.0, AWAY - noticed))
    ready = cluster.start()
    cluster.run_pod(TEAM, pod, container_id(n))
    created = time.monotonic()
    until("its name", lambda: exporter.names(pod), pause=0.02)
    named = time.monotonic()
    logged = exporter.logged()[log:]
    new = exporter.new_faults(before)
    print(
        f"round {n}: away {AWAY:.0f} s, noticed after {noticed:.1f} s; named {named - ready:.2f} s after readiness, "
        f"{named - created:.2f} s after the pod's creation; watches answered with 410: {logged.count('(410)')}; "
        f"faults: {new}",
        flush=True,
    )
    for line in (line for line in logged.splitlines() if "(403)" in line):
        print(f"  {line.strip()}")
    if new.get("no_permission"):
        raise SystemExit("a starting server counts as a lack of permission")
    return named - ready, logged.count("(410)")


def main():
    parser = arguments(__doc__)
    parser.add_argument("folder", help="contains etcd, kube-apiserver and kubectl, or a folder bin with them")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    tools = binaries(options.folder)
    if lacking := missing(tools):
        return skipped(f"missing: {', '.join(lacking)}")
    library = options.exporter.parent / "deps/libnvml_sim.so"
    with tempfile.TemporaryDirectory() as folder:
        server, machine = Path(folder, "server"), Path(folder, "machine")
        server.mkdir(), machine.mkdir()
        with Cluster(tools, server) as cluster:
            prepare(cluster)
            simulated = Exporter(options.exporter, library, machine, one_gpu(options.rounds + 1))
            with simulated.follow(cluster, cluster.token(ACCOUNT, ACCOUNT)) as exporter:
                cluster.run_pod(TEAM, "after-0", container_id(0))
                until("the first name", lambda: exporter.names("after-0"))
                shown = exporter.in_cluster(cluster, "after-0")
                print("in-cluster with token and ca.crt alone: named" if shown else "SKIPPED: in-cluster needs mount namespaces")
                measured = [round_of(cluster, exporter, n) for n in range(1, options.rounds + 1)]
    slowest = max(seconds for seconds, _ in measured)
    print(f"slowest of {len(measured)}: {slowest:.2f} s; {sum(gone > 0 for _, gone in measured)} with a 410")
    return 0 if slowest <= LIMIT else f"a name took longer than {LIMIT} s"


if __name__ == "__main__":
    sys.exit(main())
