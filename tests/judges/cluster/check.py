#!/usr/bin/env python3
"""Checks what is shipped for Kubernetes, and the exporter, against a real API server. See README.md."""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "deploy"))

import access
import budgets
import following
import recorded
import scenarios
import shipped
from harness import arguments, skipped
from server import BINARIES, Cluster, binaries, missing
from simulated import ACCOUNT, TEAM, Exporter, Relay, one_gpu

CONTAINERS = 20
PROGRAMS = (*BINARIES, "pod-resources")


def problems(cluster, crds, program, machine):
    yield from shipped.check(cluster, crds)
    api = shipped.Api(cluster)
    base = scenarios.run("kubectl", "kustomize", scenarios.KUSTOMIZE / "base")
    for item in base:
        api.apply(item)
    [binding] = (item for item in base if item["kind"] == "ClusterRoleBinding")
    cluster.create_namespace(TEAM, enforce="privileged")
    cluster.create_account(TEAM, "default")
    own = following.create_own(cluster, "own")
    token = cluster.token(ACCOUNT, ACCOUNT, own)
    yield from access.check(cluster, token)
    library = program.parent / "deps/libnvml_sim.so"
    for name in ("budgets", "names", "claims"):
        (machine / name).mkdir()
    budgeted = Exporter(program, library, machine / "budgets", budgets.scenario())
    with Relay(cluster.port) as relay, budgeted.follow(cluster, token, relay.port) as exporter:
        yield from budgets.check(cluster, exporter, relay)
    simulated = Exporter(program, library, machine / "names", one_gpu(CONTAINERS))
    with Relay(cluster.port) as relay, simulated.follow(cluster, token, relay.port) as exporter:
        yield from following.check(cluster, exporter, relay, api, binding, own)
    yield from recorded.check(cluster, cluster.token(ACCOUNT, ACCOUNT), program, library, machine / "claims")


def main():
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path, help="contains bin and crds, as .ci/cluster-tools.sh provides them")
    options = parser.parse_args()
    tools, crds = binaries(options.folder, PROGRAMS), options.folder / "crds"
    if lacking := missing(tools, PROGRAMS) + ([] if crds.is_dir() else ["crds"]) + ([] if shutil.which("helm") else ["helm"]):
        return skipped(f"missing: {', '.join(lacking)}")
    os.environ["PATH"] = f"{tools['kubectl'].parent}{os.pathsep}{os.environ['PATH']}"
    begin, found = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        server, machine = Path(folder, "server"), Path(folder, "machine")
        server.mkdir(), machine.mkdir()
        with Cluster(tools, server) as cluster:
            print(f"Kubernetes {cluster.ask('GET', '/version')['gitVersion']}", flush=True)
            for problem in problems(cluster, crds, options.exporter, machine):
                print(f"BAD {problem}", flush=True)
                found.append(problem)
    print(f"{len(found)} problems, {time.monotonic() - begin:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
