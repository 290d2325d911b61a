#!/usr/bin/env python3
"""Checks what the published crates tell the Rust registry: their metadata, the links of their READMEs, and the archives of cargo binstall.

    release/check-crates.py

Invariant: a package of the workspace is either private (`publish = false`) or has everything that this program requires.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIRED = ("description", "license", "documentation", "readme", "rust_version", "keywords", "categories")
# The registry's limits.
KEYWORDS, KEYWORD = 5, r"[a-z0-9][a-z0-9_+-]{0,19}"
# The folder in the archive and the name of the archive in release/build.sh.
ARCHIVE = re.compile(r"^ *name=(.+)$", re.MULTILINE)
ARCHITECTURES = {"x86_64-unknown-linux-gnu": "amd64", "aarch64-unknown-linux-gnu": "arm64"}


def members():
    told = subprocess.run(
        ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(told.stdout)["packages"]


def links(text):
    """The targets of the links and pictures that are neither URLs nor places in the same page."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            yield target.split("#")[0]


def crate(package, packaged, repository):
    """What is wrong with a published crate; `packaged` are the files in its package, `repository` is that of release/publisher.sh."""
    if (package["repository"] or "") != repository:
        yield f"has the repository '{package['repository'] or ''}', release/publisher.sh has '{repository}'"
    for key in REQUIRED:
        if not package[key]:
            yield f"has no {key}"
    if len(package["keywords"]) > KEYWORDS or not all(re.fullmatch(KEYWORD, word) for word in package["keywords"]):
        yield f"keywords that the registry refuses: {package['keywords']}"
    folder = Path(package["manifest_path"]).parent
    if "LICENSE" not in packaged:
        yield "the package has no LICENSE"
    for target in links((folder / package["readme"]).read_text()):
        # Without a repository the registry cannot find a file that is not in the package. The exporter's README leads to docs/, so its
        # links need the repository.
        if target not in packaged and not (package["name"] == "vram-exporter" and (folder / target).exists()):
            yield f"README.md links to {target}, which is not in the package"


def binstall(package, script):
    """Where the archives' names differ from those in release/build.sh, which is `script`."""
    names = ARCHIVE.findall(script)
    if len(names) != 1:
        yield f"release/build.sh names an archive {len(names)} times"
        return
    overrides = package["metadata"]["binstall"]["overrides"]
    if sorted(overrides) != sorted(ARCHITECTURES):
        yield f"binstall has {sorted(overrides)}"
        return
    for target, arch in ARCHITECTURES.items():
        name = names[0].replace("$version", "{ version }").replace("$arch", arch)
        wanted = {"pkg-url": "{ repo }/releases/download/v{ version }/" + name + ".tar.gz", "bin-dir": name + "/{ bin }"}
        if overrides[target] != wanted:
            yield f"binstall, {target}: {overrides[target]} instead of {wanted}"


def files(name):
    told = subprocess.run(
        ["cargo", "package", "--quiet", "--list", "--allow-dirty", "--package", name],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return set(told.stdout.split())


def main():
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    published = [package for package in members() if package["publish"] is None]
    repository = re.search(r"^REPOSITORY=\"?([^\"\n]*)\"?$", (ROOT / "release/publisher.sh").read_text(), re.MULTILINE)[1]
    problems = []
    for package in published:
        found = list(crate(package, files(package["name"]), repository))
        if package["name"] in ("vram-exporter", "vram"):
            found += binstall(package, (ROOT / "release/build.sh").read_text())
        problems += [f"{package['name']}: {problem}" for problem in found]
    print("\n".join(problems) or f"{len(published)} crates: {', '.join(package['name'] for package in published)}")
    if not all(package["repository"] for package in published):
        print("note: no repository is set, so links to docs/ and `cargo binstall` do not work on the registry")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
