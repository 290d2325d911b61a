"""Checks the compose files as a new user gets them: every image is pinned, every mounted path exists, nothing
can be reached from outside the machine, and each address in the mounted configurations consists of a service and one of its ports."""

import re
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, finish

FOLDER = ROOT / "deploy"
# Folders in which the services look for the shipped files.
MOUNTED = {"deploy/prometheus/rules", "grafana/dashboards", "grafana/provisioning/dashboards", "grafana/provisioning/datasources"}


def read(path):
    return yaml.safe_load(path.read_text())


def image_problems(name, service):
    image = service["image"]
    if "build" in service:
        context = FOLDER / service["build"]["context"]
        if not (context / service["build"].get("dockerfile", "Dockerfile")).is_file():
            yield f"{name}: no Dockerfile in {context}"
    elif not re.fullmatch(r"[a-z0-9/._-]+:v?\d+\.\d+\.\d+", image):
        yield f"{name}: image {image} is not pinned to a version"


def mounts(service):
    """Source and target of each path that is mounted; named volumes are left out."""
    for mount in service.get("volumes", []):
        source, target, mode = (mount.split(":") + ["rw"])[:3]
        if source.startswith((".", "/")):
            yield source, target, mode


def mount_problems(name, service):
    for source, target, mode in mounts(service):
        if not (FOLDER / source).resolve().exists():
            yield f"{name}: {source} does not exist"
        if mode != "ro":
            yield f"{name}: {target} can be written"


def port_problems(name, service):
    for port in service.get("ports", []):
        if not re.fullmatch(r"127\.0\.0\.1:(\d+):\1", str(port)):
            yield f"{name}: port {port} is not bound to the loopback address, or is mapped to another port"


def addresses():
    """Every host and port in the configurations that the services read."""
    config = read(FOLDER / "prometheus/compose.yml")
    found = [
        target for job in config["scrape_configs"] for entry in job["static_configs"] for target in entry["targets"]
    ]
    for manager in config["alerting"]["alertmanagers"]:
        found += [target for entry in manager["static_configs"] for target in entry["targets"]]
    for file in (ROOT / "grafana/provisioning/datasources").glob("*.yml"):
        found += [source["url"].removeprefix("http://") for source in read(file)["datasources"]]
    return found


def reference_problems(services):
    ports = {
        name: {str(port).rsplit(":", 1)[1] for port in service.get("ports", [])} for name, service in services.items()
    }
    for address in addresses():
        host, port = address.split(":")
        if port not in ports.get(host, ()):
            yield f"no service {host} with port {port}"
    for name, service in services.items():
        for other in service.get("depends_on", []):
            if other not in services:
                yield f"{name} depends on {other}, which is not a service"
    sources = {
        (FOLDER / source).resolve().relative_to(ROOT).as_posix()
        for s in services.values()
        for source, _, _ in mounts(s)
    }
    if MOUNTED - sources:
        yield f"not mounted: {sorted(MOUNTED - sources)}"
    dashboards = [p["options"]["path"] for p in read(ROOT / "grafana/provisioning/dashboards/files.yml")["providers"]]
    targets = {target for _, target, _ in mounts(services["grafana"])}
    if not set(dashboards) <= targets:
        yield f"Grafana looks for dashboards in {dashboards}, and none is mounted there"


def exporter_problems(demo, gpu):
    """The demo needs nothing from the machine. The GPU variant needs the machine's GPUs and processes, and must not run the demo."""
    if demo["command"] != ["--demo"] or not demo["read_only"] or demo["cap_drop"] != ["ALL"]:
        yield "the exporter of docker-compose.yml is not the confined demo"
    if any(key in demo for key in ("privileged", "cap_add", "pid", "user")):
        yield "the demo requires something from the machine"
    if gpu["command"] != [] or gpu["gpus"] != "all" or gpu["pid"] != "host":
        yield "docker-compose.gpu.yml does not show the machine's GPUs and processes"
    if set(gpu) - {"command", "gpus", "pid", "environment", "volumes"}:
        yield f"docker-compose.gpu.yml changes more than documented: {sorted(gpu)}"


def main():
    compose, override = read(FOLDER / "docker-compose.yml"), read(FOLDER / "docker-compose.gpu.yml")
    services = compose["services"]
    found = [*reference_problems(services), *exporter_problems(services["exporter"], override["services"]["exporter"])]
    if set(override["services"]) - set(services):
        found.append("docker-compose.gpu.yml overrides a service that does not exist")
    for name, service in services.items():
        found += [*image_problems(name, service), *mount_problems(name, service), *port_problems(name, service)]
    found += mount_problems("exporter with GPUs", override["services"]["exporter"])
    known = set(re.findall(r"`(VRAM_EXPORTER_[A-Z_]+)`", (ROOT / "docs/configuration.md").read_text()))
    found += [f"{name} is not a key" for name in override["services"]["exporter"]["environment"] if name not in known]
    print(", ".join(f"{name} ({service['image']})" for name, service in services.items()))
    return finish(found)


if __name__ == "__main__":
    sys.exit(main())
