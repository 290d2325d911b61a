#!/usr/bin/env python3
"""Prints, changes or checks the version of the exporter, its crates, the chart and the Python client.

    release/set-version.py            prints the version
    release/set-version.py VERSION    changes it, in Cargo.toml and in every file that repeats it; prints these files
    release/set-version.py --check    lists the places that have another version, and changes nothing

Invariant: the version is that of [workspace.package] in Cargo.toml. The files that repeat it are those in PLACES, the lock files, and every
file that git tracks in which a name of this project is followed by a version (`vram-exporter:VERSION`, `vram_exporter-VERSION`).
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NUMBER = r"(?:0|[1-9]\d*)"
VERSION = rf"{NUMBER}\.{NUMBER}\.{NUMBER}"

SOURCE = ("Cargo.toml", r'(?m)^\[workspace\.package\]\n(?:[^\[].*\n)*?version = "(<V>)"$')
# A file, the pattern whose group is the version (<V>), and how often the file contains the pattern.
PLACES = (
    (*SOURCE, 1),
    ("Cargo.toml", r'(?m)^[a-z-]+ = \{ path = "[^"]+", version = "(<V>)"(?:, [^}]*)? \}$', 12),
    ("clients/python/src/vram_exporter/_version.py", r'(?m)^__version__ = "(<V>)"$', 1),
    ("deploy/helm/vram-exporter/Chart.yaml", r"(?m)^version: (<V>)$", 1),
    ("deploy/helm/vram-exporter/Chart.yaml", r'(?m)^appVersion: "(<V>)"$', 1),
    ("deploy/kubernetes/base/kustomization.yaml", r"(?m)^    newTag: (<V>)$", 1),
    ("docs/deploy/kubernetes.md", r"(?m)^    newTag: (<V>)$", 1),
    ("Dockerfile", r"(?m)^ARG VERSION=(<V>)$", 1),
)
LOCK_FILES = ("Cargo.lock", "fuzz/Cargo.lock")
# A package of the workspace has no source. Its version in a lock file follows its name.
LOCKED = r'(?m)^name = "(?:{names})"\nversion = "(<V>)"\n(?!source)'
# The name of a file, an image, or a program with its version; a space is not enough, so a sentence about an older version remains.
NAMED = r"vram[-_]exporter(?:-[a-z]+)?[-_:@/=]v?(<V>)(?![\d.]*\d)"


def pattern(text):
    return re.compile(text.replace("<V>", VERSION))


def read(file):
    return (ROOT / file).read_text()


def current():
    found = pattern(SOURCE[1]).search(read(SOURCE[0]))
    if not found:
        raise SystemExit("Cargo.toml has no [workspace.package] version of the form 1.2.3")
    return found.group(1)


def crates():
    """The names of the packages that have the workspace's version."""
    for manifest in [ROOT / "Cargo.toml", *sorted(ROOT.glob("crates/*/Cargo.toml"))]:
        text = manifest.read_text()
        if "\nversion.workspace = true\n" not in text:
            raise SystemExit(f"{manifest.relative_to(ROOT)} does not have the workspace's version")
        yield re.search(r'(?m)^name = "(.+)"$', text).group(1)


def tracked():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.split("\0") if name]


def places():
    """Every place as a file, a pattern and a number of matches; None is any number."""
    names = list(crates())
    yield from PLACES
    for file in LOCK_FILES:
        in_workspace = r'(?m)^name = "({})"\nversion = "[^"]+"\n(?!source)'.format("|".join(names))
        yield file, LOCKED.format(names="|".join(names)), len(re.findall(in_workspace, read(file)))
    for file in tracked():
        path = ROOT / file
        if path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if pattern(NAMED).search(text):
            yield file, NAMED, None


def check(wanted):
    """The places that do not have this version, as lines of text."""
    for file, regex, count in places():
        text = read(file)
        matches = list(pattern(regex).finditer(text))
        if count is not None and len(matches) != count:
            yield f"{file}: {len(matches)} instead of {count} places with a version: {regex}"
        for match in matches:
            if match.group(1) != wanted:
                line = text.count("\n", 0, match.start(1)) + 1
                yield f"{file}:{line}: {match.group(1)} instead of {wanted}"


def replace(file, regex, version):
    """Whether the file changed."""
    text = read(file)
    parts, end = [], 0
    for match in pattern(regex).finditer(text):
        parts += [text[end : match.start(1)], version]
        end = match.end(1)
    changed = "".join(parts) + text[end:]
    (ROOT / file).write_text(changed)
    return changed != text


def change(version):
    changed = {file for file, regex, _ in list(places()) if replace(file, regex, version)}
    for file in sorted(changed):
        print(file)


def report(problems):
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def main():
    arguments = sys.argv[1:]
    if not arguments:
        print(current())
        return 0
    if arguments == ["--check"]:
        return report(list(check(current())))
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise SystemExit(__doc__)
    if not re.fullmatch(VERSION, arguments[0]):
        raise SystemExit(f"not a version of the form 1.2.3: {arguments[0]}")
    change(arguments[0])
    return report(list(check(arguments[0])))


if __name__ == "__main__":
    sys.exit(main())
