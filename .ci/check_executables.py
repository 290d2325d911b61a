#!/usr/bin/env python3
"""Checks that each program in the repository can be run as it is written down: a file with a shebang is executable, an
executable file has a shebang, and so has a file that a document, or its own first lines, calls by its path.

usage: check_executables.py   (reads what git tracks)
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# How many characters of a program contain the description of its usage.
HEAD = 3000


def tracked():
    """Path and mode of each file that git tracks, except links."""
    listed = subprocess.run(["git", "ls-files", "-s", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for entry in filter(None, listed.split("\0")):
        details, path = entry.split("\t")
        mode = details.split()[0]
        if mode in ("100644", "100755"):
            yield Path(path), mode == "100755"


def calls(path, document, text):
    """Whether a line or a code span begins with the path, from the root or from the document's folder, and an argument or nothing
    follows. A code span with the path alone is a mention."""
    names = [str(path)]
    if path.is_relative_to(document.parent):
        names.append("./" + str(path.relative_to(document.parent)))
    name = "|".join(map(re.escape, names))
    return re.search(rf"(?m)^ *({name})( |$)|`({name}) [^`]", text) is not None


def problems():
    files = dict(tracked())
    documents = {path: (ROOT / path).read_text() for path in files if path.suffix == ".md"}
    for path, executable in files.items():
        with open(ROOT / path, "rb") as file:
            shebang = file.read(2) == b"#!"
        if shebang and not executable:
            yield f"{path} begins with #! and is not executable: git update-index --chmod=+x {path}"
        if executable and not shebang:
            yield f"{path} is executable and does not begin with #!"
        if executable or path.suffix not in (".py", ".sh"):
            continue
        own = (ROOT / path).read_text()[:HEAD]
        callers = [name for name, text in (documents | {path: own}).items() if calls(path, name, text)]
        if callers:
            yield f"{path} is not executable, and is called by its path in {', '.join(map(str, callers))}"


def main():
    found = list(problems())
    print("\n".join(found) or "every program can be run", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
