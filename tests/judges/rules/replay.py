"""Replays jobs that were recorded on a real GPU through the shipped rules: a leak raises alerts, a training run does not.

    replay.py [--stretch N]

The recordings (tests/fixtures/recordings, made by tests/judges/gpu/record_job.py) last seven minutes, and the rules look back over
half an hour. Time is therefore stretched: what was scraped every 3 s is replayed as if it had been scraped every 18 s. For the rules,
a leak of 64 MiB a second becomes one of 10.7 MiB a second. The rule files are not changed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
RECORDINGS = ROOT / "tests/fixtures/recordings"
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
ALERTS = ("GpuMemoryExhaustionPredicted", "GpuProcessMemoryLeak")
TARGET = 'job="vram-exporter",instance="gpu-host"'


def series(recording):
    """The recorded series in promtool's notation; a scrape without the series is a gap."""
    for name, values in recording["series"].items():
        inside = name.index("{")
        labels = name[inside + 1 : -1]
        text = " ".join("_" if value is None else repr(value) for value in values)
        yield {"series": f"{name[:inside]}{{{TARGET}{',' if labels else ''}{labels}}}", "values": text}
        if name.startswith("gpu_process_memory_used_bytes"):
            # The recordings do not contain gpu_process_info: they contain the process's workload in a separate family.
            owner = labels.replace(',type="compute"', "") + ',workload="user:root",kind="user",user="root"'
            known = " ".join("_" if value is None else "1" for value in values)
            yield {"series": f"gpu_process_info{{{TARGET},{owner}}}", "values": known}
    yield {"series": f"up{{{TARGET}}}", "values": f"1x{len(recording['seconds'])}"}


def test(recording, stretch):
    every = recording["every"] * stretch
    end = f"{int(len(recording['seconds']) * every)}s"
    fires = 1 if recording["job"] == "leak" else 0
    return {
        "name": recording["job"],
        "interval": f"{every:g}s",
        "input_series": list(series(recording)),
        "promql_expr_test": [
            {
                "expr": f'count(count_over_time(ALERTS{{alertname="{alert}",alertstate="firing"}}[2h])) or vector(0)',
                "eval_time": end,
                "exp_samples": [{"labels": "{}", "value": fires}],
            }
            for alert in ALERTS
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stretch", type=float, default=6)
    options = parser.parse_args()
    recordings = [json.loads((RECORDINGS / f"h200-{job}.json").read_text()) for job in ("leak", "training")]
    tests = [test(recording, options.stretch) for recording in recordings]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.yml"
        path.write_text(yaml.safe_dump({"rule_files": [str(rule) for rule in RULES], "evaluation_interval": "30s", "tests": tests}))
        done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    for recording in recordings:
        what = "fire" if recording["job"] == "leak" else "stay silent"
        print(f"{recording['job']} ({recording['gpu']}, {recording['date']}): {' and '.join(ALERTS)} {what}")


if __name__ == "__main__":
    main()
