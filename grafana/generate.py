"""Generates dashboards/*.json from source/*.py. Edit only the sources.

python3 grafana/generate.py           # writes the files
python3 grafana/generate.py --check   # names the files that differ, writes nothing, exits with status 1 if any differ
"""

import json
import sys
from pathlib import Path

from source import exporter, fleet, gpu, workloads

FOLDER = Path(__file__).resolve().parent / "dashboards"


def files():
    """The name and text of each file."""
    for dashboard in (fleet.DASHBOARD, gpu.DASHBOARD, workloads.DASHBOARD, exporter.DASHBOARD):
        name = dashboard["uid"].removeprefix("vram-exporter-")
        yield f"{name}.json", json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 64
    expected = dict(files())
    found = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    if not arguments:
        for name, text in expected.items():
            (FOLDER / name).write_text(text)
        for name in found.keys() - expected.keys():
            (FOLDER / name).unlink()
        return 0
    stale = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    for name in stale:
        print(
            f"grafana/dashboards/{name} differs from its source: run python3 grafana/generate.py", file=sys.stderr
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
