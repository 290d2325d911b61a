"""The exporter, the simulated machine that it watches, and its figures as numbers."""

import re
import time
from pathlib import Path

from harness import Server, free_port, until

SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
ESCAPED = str.maketrans({text: escape for escape, text in ESCAPES.items()})


def series_name(family, labels):
    """A series as an exposition writes it. A label without a value is left out."""
    return f"{family}{{{','.join(f'{label}={chr(34)}{text.translate(ESCAPED)}{chr(34)}' for label, text in labels.items() if text)}}}"


def samples(text):
    """The samples of an exposition: (name, labels, value)."""
    found = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not (match := SAMPLE.fullmatch(line)):
            raise ValueError(f"not a sample: {line}")
        labels = {name: re.sub(r"\\.", lambda at: ESCAPES[at[0]], value) for name, value in LABEL.findall(match["labels"] or "")}
        found.append((match["name"], labels, float(match["value"])))
    return found


def value(scrape, name, **labels):
    """The sum of the series with this name and these labels; 0 if there is none."""
    return sum(of for other, has, of in scrape if other == name and labels.items() <= has.items())


def slow_faults(scrape):
    return value(scrape, "vram_exporter_faults_by_reason_total", reason="slow")


class Exporter(Server):
    """vram-exporter on a loopback port."""

    def __init__(self, program, *flags, port=None, **settings):
        port = port or free_port()
        super().__init__([program, f"--web.listen-address=127.0.0.1:{port}", *flags], port, **settings)

    def scrape(self):
        return samples(self.get("/metrics"))

    def until(self, what, wanted, **limits):
        """The first scrape that `wanted` accepts."""
        def look():
            scrape = self.scrape()
            return wanted(scrape) and scrape

        return until(what, look, log=self.output, **limits)


class Machine:
    """A simulated machine: a folder with its scenario, its /proc and, unless `control` is None, a control file; and what a program needs to see
    this machine. `scenario` is a name or a text of more than one line."""

    def __init__(self, folder, library, scenario, control=""):
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.procfs = self.folder / "proc"
        if "\n" in scenario:
            (self.folder / "scenario.toml").write_text(scenario)
            scenario = self.folder / "scenario.toml"
        self.epoch = time.time()
        self.flags = [f"--nvml.library={library}", f"--path.procfs={self.procfs}", f"--path.passwd={self.procfs}/passwd"]
        self.environment = {
            "NVML_SIM_SCENARIO": str(scenario),
            "NVML_SIM_PROCFS": str(self.procfs),
            "NVML_SIM_EPOCH": f"{self.epoch:.6f}",
        }
        if control is not None:
            self.control(control)
            self.environment["NVML_SIM_CONTROL"] = str(self.folder / "control.toml")

    def control(self, content):
        """Replaces the control file in one step."""
        aside = self.folder / "control.new"
        aside.write_text(content)
        aside.replace(self.folder / "control.toml")
