"""The exporter with a bound token and the shipped role: it names pods, whatever happens to the API server, the token and the role.

Invariant: no time is judged. Every wait ends with an error if the expected state is not reached.
"""

import time
import urllib.parse

from harness import skipped
from server import pod, until
from simulated import ACCOUNT, TEAM, container_id

NODE = "node-1"
OTHERS = 2000
# For how many seconds the expiring token is accepted.
USABLE = 20
# The most bytes that may come back for each pod of another node. An event about a pod has more than 500; the rest of the bytes is what a
# renewed watch and a list cost in any case.
FOREIGN_BYTES_PER_POD = 10


class Story:
    """A cluster and the exporter that follows it through a relay."""

    def __init__(self, cluster, exporter, relay):
        self.cluster, self.exporter, self.relay = cluster, exporter, relay
        self.pods = 0

    def new_pod(self):
        """Creates a pod and waits until its name is shown."""
        name = f"pod-{self.pods}"
        self.cluster.run_pod(TEAM, name, container_id(self.pods))
        self.pods += 1
        begin = time.monotonic()
        until(f"the name of {name}", lambda: self.exporter.names(name), pause=0.02)
        return time.monotonic() - begin

    def keeps_names(self):
        if not self.exporter.names("pod-0"):
            yield "the names are not shown while the API server is not followed"

    def down(self):
        until("the exporter notices", lambda: not self.exporter.is_up())

    def named(self, what, seconds):
        print(f"ok  {what}: a new pod has its name after {seconds:.2f} s", flush=True)


def others(story):
    """Pods of other nodes cost nothing: no events, and no longer list."""
    cluster, relay, exporter = story.cluster, story.relay, story.exporter

    def cost_of_a_list():
        before = relay.received
        shown = exporter.once()
        if 'workload="team/pod-0/main"' not in shown:
            raise SystemExit("--once shows no name")
        # The watch of the running exporter may be renewed meanwhile. The limit below leaves room for this.
        return relay.received - before

    alone = cost_of_a_list()
    # A new watch, so that it is not renewed soon.
    relay.cut()
    story.new_pod()
    begin, connections, before = time.monotonic(), relay.connections, relay.received
    cluster.run_many(TEAM, OTHERS, "node-2")
    seconds, received, renewed = time.monotonic() - begin, relay.received - before, relay.connections - connections
    among = cost_of_a_list()
    there = len(cluster.ask("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-2")["items"])
    print(
        f"ok  {OTHERS} pods on another node, created in {seconds:.0f} s: {received} bytes came back meanwhile over the open watch and "
        f"{renewed} new ones; a list costs {among} bytes, before that {alone}"
    )
    if there != OTHERS:
        yield f"{there} pods on the other node"
    limit = FOREIGN_BYTES_PER_POD * OTHERS
    if received > limit or among > alone + limit:
        yield f"pods of other nodes are transferred: more than {limit} bytes"


def restarts(story):
    """A server that goes and comes back, twice; a starting server's 403 is not a lack of permission."""
    for _ in range(2):
        before = story.exporter.faults()
        story.cluster.crash()
        story.down()
        yield from story.keeps_names()
        story.cluster.start()
        seconds = story.new_pod()
        if story.exporter.new_faults(before).get("no_permission"):
            yield "a restarted server counts as a lack of permission"
        story.named("a restart of the API server", seconds)


def compaction(story):
    """The store's history is compacted while the server is away, so the watch cannot be resumed."""
    exporter, cluster = story.exporter, story.cluster
    before, log = exporter.faults(), len(exporter.logged())
    cluster.crash()
    story.down()
    cluster.compact(cluster.move_on())
    cluster.start()
    seconds = story.new_pod()
    gone = exporter.logged()[log:].count("(410)")
    if not gone:
        yield "no watch was answered with 410 after the compaction"
    strange = set(exporter.new_faults(before)) - {"connection", "timeout", "unknown"}
    if strange:
        yield f"faults other than those of an outage after a compaction: {sorted(strange)}"
    story.named(f"a compaction, {gone} answers with 410", seconds)


def rotated(story, own):
    """The token is replaced, and then the old one revoked by deleting the pod to which it is bound."""
    cluster, exporter = story.cluster, story.exporter
    before = exporter.faults()
    old = (exporter.folder / "token").read_text()
    replacement = create_own(cluster, "own-2")
    exporter.write_token(cluster.token(ACCOUNT, ACCOUNT, replacement))
    cluster.ask("DELETE", f"/api/v1/namespaces/{ACCOUNT}/pods/{own['metadata']['name']}?gracePeriodSeconds=0")
    until("the old token is refused", lambda: cluster.code("GET", "/api/v1/pods", old) == 401)
    story.relay.cut()
    seconds = story.new_pod()
    if exporter.new_faults(before).get("no_permission"):
        yield "the old token was used after the file had been replaced"
    story.named("a rotated token, the old one revoked", seconds)


def expiring(story):
    """A token expires and is replaced later. It is signed by the test, because the API server issues none for less than ten minutes."""
    cluster, exporter = story.cluster, story.exporter
    good = (exporter.folder / "token").read_text()
    # The API server accepts a token for a minute after its end. The rest is the time that the exporter has for using it.
    expiring = cluster.sign(good, exp=int(time.time()) - 60 + USABLE, jti="expiring-token")
    exporter.write_token(expiring)
    story.relay.cut()

    def used():
        ids = (event["user"].get("extra", {}).get("authentication.kubernetes.io/credential-id") for event in events(cluster))
        return ["JTI=expiring-token"] in ids

    until("the expiring token is used", used)
    if exporter.faults().get("no_permission"):
        yield "the expiring token was refused before its end"
    until("it has expired", lambda: cluster.code("GET", "/api/v1/pods", expiring) == 401)
    story.relay.cut()
    until("its end is counted", lambda: exporter.faults().get("no_permission"))
    story.down()
    yield from story.keeps_names()
    exporter.write_token(good)
    seconds = story.new_pod()
    story.named("an expired token, replaced later", seconds)


def without_role(story, api, binding):
    """The role is taken away and given back."""
    cluster, exporter = story.cluster, story.exporter
    token = (exporter.folder / "token").read_text()
    before = exporter.faults().get("no_permission", 0)
    api.delete(binding)
    until("the server refuses", lambda: cluster.code("GET", "/api/v1/pods", token) == 403)
    story.relay.cut()
    until("a lasting 403 is counted", lambda: exporter.faults().get("no_permission", 0) > before)
    story.down()
    yield from story.keeps_names()
    api.apply(binding)
    seconds = story.new_pod()
    story.named("the role removed and given back", seconds)


def events(cluster):
    """The exporter's own requests."""
    return cluster.audit("vram-exporter/")


def requests(cluster):
    """The audit log: nothing but lists and watches of this node's pods."""
    counts = {}
    for event in events(cluster):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(event["requestURI"]).query)
        kind = event["verb"], event["objectRef"]["resource"], event["objectRef"].get("namespace")
        if kind not in (("list", "pods", None), ("watch", "pods", None)) or query["fieldSelector"] != [f"spec.nodeName={NODE}"]:
            yield f"request: {event['verb']} {event['requestURI']}"
        counts[event["verb"]] = counts.get(event["verb"], 0) + 1
    if set(counts) != {"list", "watch"}:
        yield f"requests in the audit log: {counts}"
    print(f"ok  requests in the audit log: {counts['list']} lists, {counts['watch']} watches, nothing else")


def create_own(cluster, name):
    """A pod of the exporter, to which its token is bound."""
    item = pod(ACCOUNT, name, NODE)
    item["spec"] |= {"serviceAccountName": ACCOUNT}
    return cluster.ask("POST", f"/api/v1/namespaces/{ACCOUNT}/pods", item)


def check(cluster, exporter, relay, api, binding, own):
    """Yields every problem."""
    story = Story(cluster, exporter, relay)
    story.named("a bound token", story.new_pod())
    if exporter.in_cluster(cluster, "pod-0"):
        print("ok  in-cluster with token and ca.crt alone")
    else:
        skipped("mount namespaces, for in-cluster")
    yield from others(story)
    yield from restarts(story)
    yield from compaction(story)
    yield from rotated(story, own)
    yield from expiring(story)
    yield from without_role(story, api, binding)
    yield from requests(cluster)
