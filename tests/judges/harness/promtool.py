"""promtool: what it says about files, and unit tests of rules."""

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path


def promtool(*arguments):
    """Its exit status, and what it printed."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


def problems(*arguments):
    """What promtool finds wrong: one text or none."""
    status, text = promtool(*arguments)
    return [f"promtool {' '.join(map(str, arguments))}: {text}"] if status else []


@contextlib.contextmanager
def written(document):
    """The path of a file with this document. JSON is valid YAML."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        json.dump(document, file)
        file.flush()
        yield file.name


def unit_test(test, files=(), groups=(), **more):
    """Runs one unit test of the rules in these files or groups. Returns the exit status, and what promtool printed."""
    with tempfile.TemporaryDirectory() as folder:
        if groups:
            Path(folder, "rules.yml").write_text(json.dumps({"groups": groups}))
        whole = {"rule_files": [*map(str, files), *(["rules.yml"] if groups else [])], "tests": [test], **more}
        Path(folder, "test.yml").write_text(json.dumps(whole))
        return promtool("test", "rules", Path(folder, "test.yml"))


def blocks_from(*arguments):
    """Makes blocks of Prometheus from a file with samples or with rules."""
    if found := problems("tsdb", "create-blocks-from", *arguments):
        raise SystemExit(found[0][-2000:])
