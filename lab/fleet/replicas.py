"""Runs deploy/prometheus/fleet/shard.yml for two clusters with equal node names, one of them with two replicas, and checks the server that
keeps their series for a year, a server that gets everything twice, and Alertmanager.

    replicas.py --exporter target/release/vram-exporter [--victoria-metrics FILE] [--thanos FILE]

Without an engine, the long-term server is a Prometheus. Only addresses, intervals and the label by which machines are divided are replaced
in the file, and the servers also send what they scrape to the third server. This is a Prometheus that removes nothing: it has the series of
both replicas of cluster-0, and those of cluster-1 as if two jobs scraped each exporter. It evaluates the shipped rules itself. Exit status 1 if a node or GPU is counted twice or not at all, if an alert is there twice, or if a series is stored that the
file does not keep.
"""

import json
import re
import sys
import time

# It adds the folder of `dashboards`, `machines` and `week` to the path.
import engines
import dashboards
import record
import stores
import week
import yaml
from harness import ROOT, arguments, free_port, until
from template import labels_of

CONFIGURATION = yaml.safe_load((ROOT / "deploy/prometheus/fleet/shard.yml").read_text())
SHAPES = ["1x4", "2mig"]
PER_CLUSTER = 4
EVERY, RULES_EVERY = "2s", "4s"
# Cluster, replica: cluster-0 has a pair of replicas of each shard, cluster-1 a single server of each.
SERVERS = [("cluster-0", "a"), ("cluster-0", "b"), ("cluster-1", "a")]
SHARDS = 2
SECOND_JOB = "second-vram-exporter"
# What rules have made is not sent to the server that evaluates them itself.
SCRAPED = {"source_labels": ["__name__"], "regex": ".*:.*|ALERTS.*", "action": "drop"}
# Fires at once for every node.
ALERT = {"alert": "NodeIsThere", "expr": "instance:gpu_up:count > 0", "labels": {"severity": "info"}}


def to_third(third, cluster):
    """Everything that is scraped, and the same again under another job where there is no second replica."""
    yield {"name": "third", "url": third.write_url, "write_relabel_configs": [SCRAPED]}
    if sum(one == cluster for one, _ in SERVERS) == 1:
        renamed = {"target_label": "job", "replacement": SECOND_JOB}
        yield {"name": "again", "url": third.write_url, "write_relabel_configs": [SCRAPED, renamed]}


def configuration(fleet, cluster, replica, shard, store, third, alertmanager, rules):
    """The shipped file for one server."""
    config = json.loads(json.dumps(CONFIGURATION))
    config["global"] |= {"scrape_interval": EVERY, "evaluation_interval": RULES_EVERY}
    config["global"]["external_labels"] = {"cluster": cluster, "shard": str(shard), "prometheus_replica": replica}
    config["rule_files"] = [rules]
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]
    [write] = config["remote_write"]
    write["url"] = store.write_url
    if store.kind == "Thanos":
        write["write_relabel_configs"] = [one for one in write["write_relabel_configs"] if one["action"] != "labeldrop"]
    if store.kind == "Prometheus" and replica != "a":
        config["remote_write"] = []
    config["remote_write"] += to_third(third, cluster)
    [job] = config["scrape_configs"]
    job |= {"scrape_interval": EVERY, "scrape_timeout": EVERY}
    del job["static_configs"]
    job["http_sd_configs"] = [{"url": f"http://127.0.0.1:{fleet.port}/sd", "refresh_interval": "5s"}]
    hashed, kept = job["relabel_configs"]
    # All machines of the simulated fleet have one address; its service discovery names the cluster.
    hashed["source_labels"] = ["instance"]
    kept["regex"] = str(shard)
    own = {"source_labels": ["cluster"], "regex": cluster, "action": "keep"}
    job["relabel_configs"] = [own, hashed, kept, {"regex": "cluster", "action": "labeldrop"}]
    return config


def rules(rig):
    pattern = engines.shipped_rules(rig.folder / "rules", RULES_EVERY)
    group = {"name": "check", "interval": RULES_EVERY, "rules": [ALERT]}
    (rig.folder / "rules/check.yml").write_text(json.dumps({"groups": [group]}))
    return pattern


def alertmanager(rig):
    port = free_port()
    path = rig.folder / "alertmanager.yml"
    path.write_text(json.dumps({"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]}))
    command = ["prometheus-alertmanager", f"--config.file={path}", f"--web.listen-address=127.0.0.1:{port}"]
    command += [f"--storage.path={rig.folder / 'alertmanager'}", "--cluster.listen-address="]
    return rig.start("alertmanager", command, port, "/-/ready")


def servers(rig, fleet, store, third, alerts, pattern):
    for cluster, replica in SERVERS:
        for shard in range(SHARDS):
            name = f"{cluster}-{replica}-{shard}"
            config = configuration(fleet, cluster, replica, shard, store, third, alerts.port, pattern)
            yield rig.configured(name, config)


def counted(store, expression):
    return {one["metric"].get("cluster"): int(float(one["value"][1])) for one in store.api.instant(expression)}


def devices_of(fleet):
    """How many GPUs each cluster has, and how many devices its namespaces use, from the machines themselves."""
    gpus, used = {}, {}
    for at in range(2 * PER_CLUSTER):
        text = fleet.get(f"/machine/{at}/metrics?at=1")
        cluster = f"cluster-{at // PER_CLUSTER}"
        gpus[cluster] = gpus.get(cluster, 0) + len(re.findall(r"^gpu_up\{", text, re.M))
        workloads = [dict(labels_of(line)) for line in text.splitlines() if line.startswith("gpu_workload_processes{")]
        users = {(one["uuid"], one.get("mig_uuid"), one["namespace"]) for one in workloads if one.get("namespace")}
        used[cluster] = used.get(cluster, 0) + len(users)
    return gpus, used


def sent_problems(running):
    """A refused sample takes the whole request with it, and nothing sends it again."""
    for engine in running:
        for line in engine.get("/metrics").splitlines():
            if re.match(r"prometheus_remote_storage_samples_failed_total\{.*\} [^0]", line):
                yield f"{engine.folder.name}: the long-term server has refused samples: {line}"


def count_problems(name, store, expected):
    for expression, number in expected.items():
        found = counted(store, expression)
        print(f"{name}: {expression}: {found}")
        if found != number:
            yield f"{name}: {expression}: {found}, not {number}"


def recorded(nodes, gpus, used):
    """What the rules record. The newest samples of 30 s: on a busy machine, a single scrape may come too late."""
    return {
        "count by (cluster) (last_over_time(instance:gpu_up:count[30s]))": nodes,
        "sum by (cluster) (last_over_time(instance:gpu_up:sum[30s]))": gpus,
        # Each shard has its own part of a namespace.
        "sum by (cluster) (last_over_time(namespace:gpu_workload_devices:count[30s]))": used,
    }


def store_problems(name, store, nodes, gpus, used):
    expected = recorded(nodes, gpus, used) | {
        "count by (cluster) (last_over_time(gpu_info[30s]))": gpus,
        "count by (cluster) (last_over_time(vram_exporter_build_info[30s]))": nodes,
    }
    yield from count_problems(name, store, expected)
    kept = re.compile(CONFIGURATION["remote_write"][0]["write_relabel_configs"][0]["regex"])
    names = store.api.label_values("__name__", '{cluster=~"cluster-.*"}')
    for one in names:
        if not kept.fullmatch(one):
            yield f"{name}: {one} is stored"
    if not any(one.endswith(":max1h") for one in names):
        yield f"{name}: no hourly peak is stored"


def third_problems(third, nodes, gpus, used):
    """The rules and the dashboards count each node and each GPU once, although the server has everything twice."""
    name = "the server that gets everything twice"
    twice = {cluster: 2 * number for cluster, number in gpus.items()}
    yield from count_problems(name, third, {"count by (cluster) (last_over_time(gpu_info[30s]))": twice})
    firing = f'count by (cluster) (last_over_time(ALERTS{{alertname="{ALERT["alert"]}",alertstate="firing"}}[30s]))'
    yield from count_problems(name, third, recorded(nodes, gpus, used) | {firing: nodes})
    yield from (f"{name}: {problem}" for problem in engines.rule_problems(third.api) if "are loaded" not in problem)
    fleet = dashboards.read()["fleet.json"]
    for title, expected in (("GPUs", sum(gpus.values())), ("Silent nodes", 0)):
        for target in week.panel_of(fleet, title)["targets"][:1]:
            [found] = third.api.instant(week.filled(target["expr"], fleet, 60, 5))
            print(f"{name}: Fleet, {title}: {found['value'][1]}")
            if float(found["value"][1]) != expected:
                yield f"{name}: Fleet, {title}: {found['value'][1]}, not {expected}"


def alert_problems(alerts):
    found = json.loads(alerts.get("/api/v2/alerts"))
    firing = sorted((one["labels"]["cluster"], one["labels"]["instance"]) for one in found if one["labels"]["alertname"] == ALERT["alert"])
    expected = [(f"cluster-{at // PER_CLUSTER}", f"node-{at % PER_CLUSTER:05}") for at in range(2 * PER_CLUSTER)]
    print(f"Alertmanager: {len(firing)} alerts of {len(expected)} nodes")
    if firing != expected:
        yield f"Alertmanager has {firing}"


def started(rig, given):
    """The long-term server, and what kind of server it is."""
    if given.victoria_metrics:
        store = stores.victoria_metrics(rig, given.victoria_metrics, flags=[f"-dedup.minScrapeInterval={RULES_EVERY}"])
        store.kind = "VictoriaMetrics"
    elif given.thanos:
        store = stores.Thanos(rig, given.thanos).query
        store.kind = "Thanos"
    else:
        store = stores.prometheus(rig)
        store.kind = "Prometheus"
    return store


def problems(rig, given):
    recordings = rig.folder / "recordings"
    recordings.mkdir()
    for shape, recording in record.record(given.exporter, SHAPES, 2, 5).items():
        record.write(recording, recordings / f"{shape}.json.gz")
    store = started(rig, given)
    alerts, pattern = alertmanager(rig), rules(rig)
    third = stores.prometheus(rig, name="third", every=RULES_EVERY, rules=pattern)
    fleet = rig.fleet(recordings, 2 * PER_CLUSTER, ",".join(SHAPES), "--clusters=2")
    running = list(servers(rig, fleet, store, third, alerts, pattern))
    seen = "last_over_time(instance:gpu_up:sum[1m])"
    until("all scrapes", lambda: sum(engines.count(one.api, seen) for one in running) == len(SERVERS) * PER_CLUSTER)
    # The rules that read others, the delay of remote write, and the engine's own delay.
    time.sleep(30)
    nodes, (gpus, used) = {one: PER_CLUSTER for one in ("cluster-0", "cluster-1")}, devices_of(fleet)
    yield from store_problems(store.kind, store, nodes, gpus, used)
    yield from third_problems(third, nodes, gpus, used)
    yield from sent_problems(running)
    yield from alert_problems(alerts)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--victoria-metrics", help="the program, as the long-term server")
    parser.add_argument("--thanos", help="the program, as the long-term server")
    given = parser.parse_args()
    return engines.judged(lambda rig: problems(rig, given))


if __name__ == "__main__":
    sys.exit(main())
