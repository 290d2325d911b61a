"""The exporter on a node without a kubelet: recorded answers of one, and the recorded slices and claims in a real API server. whole.py --record
makes the recordings.

Invariant: no time is judged.
"""

import json
import urllib.parse
from pathlib import Path

import claims
from claims import NAMESPACE, NODE, Holding
from harness import started
from server import until

RECORDINGS = Path(__file__).resolve().parent / "recorded"
GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/{NAMESPACE}/resourceclaims"
SLICES = f"{GROUP}/resourceslices"
NOTHING = {"list": {}, "allocatable": {}}


class Kubelet:
    """The answers of a kubelet. They are replaced in one step."""

    def __init__(self, folder):
        self.socket, self.file = folder / "kubelet.sock", folder / "kubelet.json"
        self.answer(NOTHING)

    def answer(self, answers):
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(answers))
        new.rename(self.file)


def create(cluster, recording):
    """Creates the slices and the claims, and returns their paths."""
    made = []
    for kind, path in (("ResourceSlice", SLICES), ("ResourceClaim", CLAIMS)):
        for item in recording["slices" if path == SLICES else "claims"]:
            own = f"{path}/{item['metadata']['name']}"
            cluster.ask("POST", path, {"apiVersion": "resource.k8s.io/v1", "kind": kind, **item})
            made.append(own)
            if "status" in item:
                cluster.ask("PATCH", f"{own}/status", {"status": item["status"]}, "application/merge-patch+json")
    return made


def requests(cluster, named):
    """The audit log: slices are listed and watched for this node only, and each claim is read once, by its name."""
    reads = []
    for event in cluster.audit("vram-exporter/"):
        kind, verb = event["objectRef"]["resource"], event["verb"]
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(event["requestURI"]).query)
        if (kind, verb) == ("resourceclaims", "get"):
            reads.append(event["objectRef"]["name"])
        elif kind == "resourceslices" and (verb not in ("list", "watch") or query["fieldSelector"] != [f"spec.nodeName={NODE}"]):
            yield f"request: {verb} {event['requestURI']}"
        elif kind not in ("pods", "resourceslices"):
            yield f"request: {verb} {event['requestURI']}"
    if sorted(reads) != sorted(named):
        yield f"claims that were read: {sorted(reads)}, those that the kubelet listed: {sorted(named)}"
    print(f"ok  requests for claims in the audit log: {len(reads)}, one for each claim")


def check(cluster, token, program, library, folder):
    """Yields every problem."""
    cluster.create_namespace(NAMESPACE, claims.FOR_MONITORING)
    kubelet, named = Kubelet(folder), []
    exporter = claims.Exporter(program, library, folder, kubelet.socket, interval=1, shared=True).follow(cluster, token)
    with open(folder / "log", "wb") as log, started([cluster.tools["pod-resources"], "serve", kubelet.socket, kubelet.file], log), exporter:
        for file in sorted(RECORDINGS.glob("*.json")):
            recording = json.loads(file.read_text())
            held = {Holding(*one) for one in recording["held"]}
            made = create(cluster, recording)
            kubelet.answer(recording["kubelet"])
            until(f"{file.stem} is shown", lambda held=held: exporter.shows(held))
            listed = {claim["metadata"]["name"] for claim in recording["claims"]}
            until("the claims are read", lambda listed=listed: listed <= claims.read(cluster), pause=0.5)
            if not exporter.shows(held):
                yield f"{file.stem}: {exporter.differences(held)}"
            devices = [device for one in recording["slices"] for device in one["spec"]["devices"]]
            promised = claims.promised(recording["claims"], devices)
            until(f"{promised} is promised", lambda promised=promised: exporter.promised() == promised)
            named += listed
            kubelet.answer(NOTHING)
            until(f"{file.stem} is gone", lambda: exporter.shows(set()))
            for path in reversed(made):
                cluster.ask("DELETE", path)
        if count := exporter.unassigned():
            yield f"{count:.0f} devices of claims were counted as assigned to no GPU"
    print(f"ok  recorded claims: {', '.join(file.stem for file in sorted(RECORDINGS.glob('*.json')))}", flush=True)
    yield from requests(cluster, named)
