"""The machine that every subject watches: simulated GPUs whose processes have the pids of real sleeping processes, or a real GPU with
CUDA processes on it. Every process started here is killed individually, by pid."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import scenario
import spikes

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "gpu"))

import nvml_abi
from children import Child, Crowd
from harness import end

BARE = ("bare.c", "same.c", "telemetry.c", "nvml.c")
SCRAPER = ("client.c",)
# all-smi looks for GPUs on the PCI bus or with nvidia-smi before it opens NVML; this output of nvidia-smi is sufficient.
NVIDIA_SMI = '#!/bin/sh\necho "GPU 0: NVIDIA H200 (UUID: GPU-simulated)"\n'


def build(program, sources, cc):
    """Compiles a helper program. Returns its path."""
    files = [str(HERE / source) for source in sources]
    subprocess.run([cc, "-O2", "-pthread", "-o", str(program), *files, "-ldl"], check=True)
    return program


class Sleepers:
    """Processes that do nothing; only their pids are used."""

    def __init__(self, bare, count):
        self.process = subprocess.Popen([bare, "-", "crowd", str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{count} sleeping processes could not be started")
        self.pids = json.loads(line)["pids"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end(self.process)


class SimulatedMachine:
    simulated = True

    def __init__(self, out, simulator, gpus, processes, sleepers):
        """`sleepers`: one for each process, and one more for the spikes. The caller terminates the sleepers."""
        self.gpus, self.processes, self.library = gpus, processes, Path(simulator).resolve()
        self.folder = out / "machine"
        (self.folder / "lib").mkdir(parents=True, exist_ok=True)
        (self.folder / "bin").mkdir(exist_ok=True)
        link = self.folder / "lib/libnvidia-ml.so.1"
        link.unlink(missing_ok=True)
        link.symlink_to(self.library)
        smi = self.folder / "bin/nvidia-smi"
        smi.write_text(NVIDIA_SMI)
        smi.chmod(0o755)
        self.scenario, self.control = self.folder / "scenario.toml", self.folder / "control.toml"
        self.spiker, *others = sleepers.pids[: gpus * processes + 1]
        self.scenario.write_text(scenario.text(gpus, others))
        self.epoch = None

    def environment(self):
        """The environment for a program that is about to start: scenario time 0 is now."""
        self.control.unlink(missing_ok=True)
        self.epoch = time.time()
        folder = self.folder.resolve()
        return {
            "NVML_SIM_SCENARIO": str(folder / "scenario.toml"),
            "NVML_SIM_CONTROL": str(folder / "control.toml"),
            "NVML_SIM_EPOCH": f"{self.epoch:.6f}",
            "LD_LIBRARY_PATH": str(folder / "lib"),
            "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', '')}",
        }

    def spike(self, count, every):
        """Makes one spike every `every` seconds, and waits until the last one is over."""
        begin = time.time() - self.epoch + 1.5
        moments = [(round(1000 * (begin + number * every)), mib) for number, mib in enumerate(spikes.heights(count))]
        new = self.control.with_suffix(".new")
        new.write_text(scenario.spiking(self.spiker, moments, spikes.HOLD_MS))
        new.replace(self.control)
        time.sleep(max(0.0, self.epoch + moments[-1][0] / 1000 - time.time()))

    def about(self):
        return {"gpu": f"{self.gpus} simulated {scenario.MODEL}", "processes a GPU": self.processes, "driver": "simulated"}


class RealMachine:
    """All the GPUs in the machine; the processes are on GPU 0, and one of them makes the spikes."""

    simulated = False

    def __init__(self, library, processes):
        self.library = Path(nvml_abi.library_file(library)).resolve()
        self.processes = processes
        self.gpu = nvml_abi.Gpu(0, str(self.library))
        self.gpus = self.count()
        self.crowd = Crowd(processes - 1, "context")
        self.spiker = None

    def __enter__(self):
        self.crowd.__enter__()
        try:
            self.spiker = Child("spikes")
            self.spiker.hear()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.spiker:
            self.spiker.end()
        self.crowd.__exit__()

    def count(self):
        found = nvml_abi.c_uint()
        self.gpu.check("nvmlDeviceGetCount_v2", self.gpu.lib.nvmlDeviceGetCount_v2(nvml_abi.byref(found)))
        return found.value

    def environment(self):
        """The library's folder, for a peer whose loader does not search it."""
        folders = [os.environ.get("LD_LIBRARY_PATH"), str(self.library.parent)]
        return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}

    def spike(self, count, every):
        """The same as on the simulated machine, with real CUDA allocations."""
        begin = time.time() + 0.5
        for number, mib in enumerate(spikes.heights(count)):
            time.sleep(max(0.0, begin + number * every - time.time()))
            self.spiker.send(mib=mib, hold_ms=spikes.HOLD_MS)
            self.spiker.hear(timeout=30)

    def about(self):
        return {
            "gpu": self.gpu.text("nvmlDeviceGetName"),
            "gpus": self.gpus,
            "processes": self.processes,
            "driver": self.gpu.text("nvmlSystemGetDriverVersion", device=False),
        }
