"""Records what the real exporter serves on simulated machines, at several moments, for serve.py.

    record.py --exporter target/release/vram-exporter --out FOLDER [--every 15] [--frames 10] [--flag=--process.series=false] SHAPE…

The shapes are those of scenarios.py; all of them are recorded at the same time. A recording is a compressed JSON file: the texts of
/metrics (`frames`) and of the listener of dcgm-exporter's families (`dcgm`) at each moment, the sizes of both with gzip (`compressed`), and
the text while the driver is replaced (`down`). Invariant: the texts are exactly what the exporter sent.
"""

import contextlib
import gzip
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

import harness
import scenarios
from harness import exporter


def compressed(url):
    """The size of the exporter's own compressed answer."""
    _, headers, content = harness.request(url, headers={"Accept-Encoding": "gzip"})
    if headers["Content-Encoding"] != "gzip":
        raise SystemExit("the exporter does not compress its answer")
    return len(content)


class Exporter(exporter.Exporter):
    """A running exporter on a scenario file."""

    def __init__(self, folder, program, name, scenario, flags):
        dcgm, path = harness.free_port(), folder / f"{name}.toml"
        path.write_text(scenario)
        self.dcgm = f"http://127.0.0.1:{dcgm}/metrics"
        own = [f"--demo={path}", f"--dcgm.listen-address=127.0.0.1:{dcgm}", f"--kubernetes.node-name=node-{name}"]
        super().__init__(program, *own, *flags, ready=None)

    def shows(self, text):
        harness.until(f"{text.strip()} is shown", lambda: text in self.get("/metrics"), log=self.output)

    def without_driver(self):
        """The text after the exporter has released the driver, as before the driver is replaced; None if nothing tells it."""
        if "\nvram_exporter_nvml_up 1\n" not in self.get("/metrics"):
            return None
        self.process.send_signal(signal.SIGUSR1)
        self.shows("\nvram_exporter_nvml_up 0\n")
        return self.get("/metrics")


def record(program, shapes, every, frames, flags=(), settle=2):
    """A recording for each shape."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        live = {}
        for number, shape in enumerate(shapes):
            live[shape] = stack.enter_context(Exporter(folder, program, f"machine-{number}", scenarios.text(shape), flags))
        for shape in shapes:
            live[shape].shows("\ngpu_memory_used_bytes{")
        time.sleep(settle)
        recordings = {s: {"shape": s, "every": every, "epoch": time.time(), "frames": [], "dcgm": []} for s in shapes}
        begin = time.monotonic()
        for moment in range(frames):
            time.sleep(max(0, begin + moment * every - time.monotonic()))
            for shape in shapes:
                recordings[shape]["frames"].append(live[shape].get("/metrics"))
                recordings[shape]["dcgm"].append(harness.get(live[shape].dcgm))
        for shape in shapes:
            recordings[shape]["compressed"] = compressed(live[shape].url + "/metrics"), compressed(live[shape].dcgm)
            recordings[shape]["down"] = live[shape].without_driver()
        return recordings


def write(recording, path):
    with gzip.open(path, "wt", compresslevel=5) as file:
        json.dump(recording, file)


def read(path):
    with gzip.open(path, "rt") as file:
        return json.load(file)


def main():
    parser = harness.arguments(__doc__)
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
