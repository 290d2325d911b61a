#!/usr/bin/env python3
"""Compares the exporter with NVML, nvidia-smi and PyTorch on a real GPU.

    verify.py --exporter PATH --out DIR [--only name,...] [--nvml PATH] [--nvitop PATH] [--prometheus PATH]
              [--tools DIR] [--cc CC]

Writes DIR/results.json and DIR/results.md; exits with status 1 if a check fails. It changes no setting of the
GPU, and kills, by pid, every process that it starts.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

import check_advice
import check_calls
import check_cost
import check_dcgm
import check_formats
import check_health
import check_incidents
import check_memory
import check_nvlink
import check_owners
import check_profiling
import check_reports
import check_run
import check_sharing
import check_sites
import check_survival
import check_time
import check_tools
import nvml_abi
from results import Results

CHECKS = {
    "identity": check_memory.identity,
    "health": check_health.health,
    "time": check_time.lost,
    "nvlink": check_nvlink.nvlink,
    "formats": check_formats.formats,
    "dcgm": check_dcgm.dcgm,
    "spikes20": check_memory.spikes20,
    "spikes2": check_memory.spikes2,
    "training": check_memory.training,
    "scrapers": check_memory.scrapers,
    "owners": check_owners.owners,
    "namespaces": check_owners.namespaces,
    "cost": check_cost.cost,
    "stall": check_cost.stall,
    "killed": check_survival.killed,
    "pace": check_survival.pace,
    "mps": check_sharing.mps,
    "ipc": check_sharing.ipc,
    "allocators": check_sharing.allocators,
    "jax": check_sharing.jax,
    "two-gpus": check_sharing.two_gpus,
    "incidents-neighbour": check_incidents.neighbour,
    "incidents-killed": check_incidents.killed,
    "incidents-spike": check_incidents.spike,
    "incidents-climb": check_incidents.climb,
    "incidents-story": check_incidents.story,
    "incidents-none": check_incidents.none,
    "pages": check_incidents.pages,
    "reports": check_reports.reports,
    "advice": check_advice.advice,
    "promised": check_advice.promised,
    "profiling": check_profiling.profiling,
    "profiling-cost": check_profiling.cost,
    "run-training": check_run.training,
    "run-ranks": check_run.ranks,
    "run-tree": check_run.tree,
    "run-ends": check_run.ends,
    "run-allocators": check_run.allocators,
    "run-pace": check_run.pace,
    "calls-spikes": check_calls.spikes,
    "calls-mps": check_calls.mps,
    "calls-two-gpus": check_calls.two_gpus,
    "calls-frameworks": check_calls.frameworks,
    "calls-refusals": check_calls.refusals,
    "calls-cost": check_calls.cost,
    "calls-cost-short": check_calls.cost_short,
    "calls-cost-refusals": check_calls.cost_refusals,
    "sites-facts": check_sites.facts,
    "sites-roles": check_sites.roles,
    "sites-expandable": check_sites.expandable,
    "sites-failure": check_sites.failure,
    "sites-leaks": check_sites.leaks,
    "sites-cost": check_sites.cost,
    "sites-tools": check_tools.failing,
    "sites-tools-endings": check_tools.endings,
    "sites-tools-cost": check_tools.cost,
}


class Setup:
    """The context of every check: the programs, the library and the folder for logs."""

    def __init__(self, options):
        self.exporter = os.path.abspath(options.exporter)
        # Built beside the exporter.
        self.tool = os.path.join(os.path.dirname(self.exporter), "vram")
        self.out = os.path.abspath(options.out)
        self.library = nvml_abi.library_file(options.nvml)
        self.nvitop = options.nvitop
        self.tools = options.tools and os.path.abspath(options.tools)
        self.prometheus = options.prometheus and os.path.abspath(options.prometheus)
        self.cc = options.cc
        os.makedirs(self.out, exist_ok=True)

    def gpu(self):
        return nvml_abi.Gpu(0, self.library)

    def gpus(self):
        return nvml_abi.Gpu.all(self.library)

    def about(self):
        version = subprocess.run([self.exporter, "--version"], capture_output=True, text=True, check=True, timeout=30)
        gpu = self.gpu()
        return {
            "date": datetime.date.today().isoformat(),
            "gpu": gpu.text("nvmlDeviceGetName"),
            "driver": gpu.text("nvmlSystemGetDriverVersion", device=False),
            "exporter": version.stdout.split("\n")[0].strip(),
        }


def names(text):
    """The names given with --only; each must be the name of a check."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in CHECKS]
    if unknown or not chosen:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown) or 'nothing'}; allowed are {', '.join(CHECKS)}")
    return chosen


def run(setup, chosen, results):
    """Run each check; a check that raises an error counts as failed, and the others continue."""
    for name in chosen:
        begun = time.monotonic()
        print(f"== {name}", flush=True)
        try:
            CHECKS[name](setup, results)
        except Exception as error:
            traceback.print_exc()
            results.check(name, f"{type(error).__name__}: {error}", "runs to its end", False)
        print(f"   {time.monotonic() - begun:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", required=True, metavar="PATH")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--only", type=names, default=list(CHECKS), metavar="NAME,...", help=", ".join(CHECKS))
    parser.add_argument("--nvml", metavar="PATH", help="the library, if the loader does not find it")
    parser.add_argument("--nvitop", metavar="PATH", help="nvitop-exporter, or a folder with its Python packages")
    parser.add_argument("--tools", metavar="DIR", help="a folder with the Python packages of the tools of sites-tools")
    parser.add_argument("--prometheus", metavar="PATH", help="Prometheus, for advice and promised")
    parser.add_argument("--cc", default="gcc", help="the C compiler for bare.c and ask.c")
    options = parser.parse_args()
    if not os.access(options.exporter, os.X_OK):
        parser.error(f"--exporter {options.exporter} is not a program; build it with: cargo build --release")

    if options.prometheus and not os.access(options.prometheus, os.X_OK):
        parser.error(f"--prometheus {options.prometheus} is not a program")

    setup = Setup(options)
    about = setup.about()
    print(json.dumps(about), flush=True)
    results = Results()
    begun = time.monotonic()
    try:
        run(setup, options.only, results)
    finally:
        results.write(setup.out, {**about, "seconds": round(time.monotonic() - begun)})
    failed = results.failed()
    print(f"{len(results.lines)} lines, {len(failed)} failed, {time.monotonic() - begun:.0f} s; see {setup.out}/results.md")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
