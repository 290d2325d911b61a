"""Records what the real exporter serves on simulated machines, at several moments, for serve.py.

    record.py --exporter target/release/vram-exporter --out FOLDER [--every 15] [--frames 10] [--flag=--process.series=false] SHAPE…

The shapes are those of scenarios.py; all of them are recorded at the same time. A recording is a compressed JSON file: the texts of
/metrics (`frames`) and of the listener of dcgm-exporter's families (`dcgm`) at each moment, the sizes of both with gzip (`compressed`), and
the text while the driver is replaced (`down`). Invariant: the texts are exactly what the exporter sent.
"""

import argparse
import contextlib
import gzip
import json
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import scenarios

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "dashboards"))
from machines import free_port, started, wait_until  # noqa: E402


def get(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def compressed(port):
    """The size of the exporter's own compressed answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        if answer.headers["Content-Encoding"] != "gzip":
            raise SystemExit("the exporter does not compress its answer")
        return len(answer.read())


def answers(port, text):
    with contextlib.suppress(OSError):
        return text in get(port)


class Exporter:
    """A running exporter on a scenario file."""

    def __init__(self, stack, folder, program, name, scenario, flags):
        self.port, self.dcgm = free_port(), free_port()
        path = folder / f"{name}.toml"
        path.write_text(scenario)
        self.log = stack.enter_context(open(folder / f"{name}.log", "w+b"))
        addresses = [f"--web.listen-address=127.0.0.1:{self.port}", f"--dcgm.listen-address=127.0.0.1:{self.dcgm}"]
        node = [f"--kubernetes.node-name=node-{name}"]
        self.process = stack.enter_context(started([program, f"--demo={path}", *addresses, *node, *flags], self.log))

    def ready(self, text):
        wait_until(lambda: answers(self.port, text), "the exporter", self.log)

    def without_driver(self):
        """The text after the exporter has released the driver, as before the driver is replaced; None if nothing tells it."""
        if "\nvram_exporter_nvml_up 1\n" not in get(self.port):
            return None
        self.process.send_signal(signal.SIGUSR1)
        self.ready("\nvram_exporter_nvml_up 0\n")
        return get(self.port)


def record(program, shapes, every, frames, flags=(), settle=2):
    """A recording for each shape."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        live = {}
        for number, shape in enumerate(shapes):
            live[shape] = Exporter(stack, folder, program, f"machine-{number}", scenarios.text(shape), flags)
        for shape in shapes:
            live[shape].ready("\ngpu_memory_used_bytes{")
        time.sleep(settle)
        recordings = {s: {"shape": s, "every": every, "epoch": time.time(), "frames": [], "dcgm": []} for s in shapes}
        begin = time.monotonic()
        for moment in range(frames):
            time.sleep(max(0, begin + moment * every - time.monotonic()))
            for shape in shapes:
                recordings[shape]["frames"].append(get(live[shape].port))
                recordings[shape]["dcgm"].append(get(live[shape].dcgm))
        for shape in shapes:
            recordings[shape]["compressed"] = compressed(live[shape].port), compressed(live[shape].dcgm)
            recordings[shape]["down"] = live[shape].without_driver()
        return recordings


def write(recording, path):
    with gzip.open(path, "wt", compresslevel=5) as file:
        json.dump(recording, file)


def read(path):
    with gzip.open(path, "rt") as file:
        return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", required=True, help="path of the exporter")
    parser.add_argument("--out", required=True, type=Path, help="the folder for the recordings")
    parser.add_argument("--every", type=float, default=15, help="seconds between two moments")
    parser.add_argument("--frames", type=int, default=10, help="number of moments")
    parser.add_argument("--flag", action="append", default=[], help="a flag for the exporter; may be repeated")
    parser.add_argument("shape", nargs="+")
    given = parser.parse_args()
    if given.frames < 2:
        parser.error("--frames: at least two, so that values move")
    given.out.mkdir(parents=True, exist_ok=True)
    for shape, recording in record(given.exporter, given.shape, given.every, given.frames, given.flag).items():
        write(recording, given.out / f"{shape}.json.gz")
        lines = [sum(not line.startswith("#") for line in text.splitlines()) for text in recording["frames"]]
        print(f"{shape}: {given.frames} moments, {min(lines)} to {max(lines)} series, {len(recording['frames'][-1])} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
