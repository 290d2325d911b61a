#!/usr/bin/env python3
"""Copies the documentation of a release into FOLDER, with the files that its pages link to, in the folders of the repository.

    release/documents.py VERSION FOLDER

The copied pages lead only to copied files. A link to another file of the repository, for example to a test, becomes the file's address if
the variable REPOSITORY is set (release/publisher.sh), and otherwise text that names the file.
"""

import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("docs", "deploy", "clients/python/README.md", "clients/python/examples", "grafana/README.md", "grafana/dashboards",
           "grafana/provisioning", "CHANGELOG.md", "SECURITY.md")  # fmt: skip
# The man pages and the chart are files of their own; the programs work only in the repository. Pictures are copied if a page shows them.
LEFT_OUT = ("docs/man", "docs/img", "deploy/helm", "deploy/generate.py", "deploy/sbom.sh", "deploy/shipped-manifests.sh")
# What has another name in FOLDER.
RENAMED = {"release/README.md.in": "README.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


def within(name, folders):
    return any(name == folder or name.startswith(folder + "/") for folder in folders)


class Documents:
    def __init__(self, version, repository):
        self.version, self.repository = version, repository
        self.files = tracked()
        self.shipped = {name for name in self.files if within(name, SHIPPED) and not within(name, LEFT_OUT)}
        for page in sorted(self.pages()):
            self.shipped |= {target for bang, _, target, _ in self.links(page) if bang and target in self.files}

    def pages(self):
        return {name for name in self.shipped if name.endswith(".md")}

    def links(self, page):
        """Each relative link: whether it is a picture, its text, the file in the repository, the place in that file."""
        for bang, text, target in LINK.findall((ROOT / page).read_text()):
            if not re.match(r"[a-z]+:|#", target):
                yield bang, text, *self.resolved(page, target)

    def resolved(self, page, target):
        path, _, place = target.partition("#")
        return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)), place

    def rewritten(self, page):
        """The page's text with links that lead to something in FOLDER, or elsewhere on purpose."""

        def replace(match):
            bang, text, target = match.groups()
            if re.match(r"[a-z]+:|#", target):
                return match[0]
            path, place = self.resolved(page, target)
            if path in RENAMED:
                here = posixpath.relpath(RENAMED[path], posixpath.dirname(page) or ".")
                return f"{bang}[{text}]({here}{'#' + place if place else ''})"
            if any(within(name, [path]) for name in self.shipped):
                return match[0]
            if not any(within(name, [path]) for name in self.files):
                raise SystemExit(f"{page} links to {target}, which does not exist")
            if self.repository:
                return f"{bang}[{text}]({self.repository}/blob/v{self.version}/{path}{'#' + place if place else ''})"
            # A text that is the file's name needs no second one.
            label = text.strip("`").lstrip("./")
            named = label == path or (label in path and re.search("[/.]", label))
            return f"`{path}` in the sources" if named else f"{text} (`{path}` in the sources)"

        return LINK.sub(replace, (ROOT / page).read_text())

    def copy(self, folder):
        for name in sorted(self.shipped):
            to = folder / name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to)
            if name.endswith(".md"):
                to.write_text(self.rewritten(name))


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    Documents(sys.argv[1], os.environ.get("REPOSITORY", "").rstrip("/")).copy(Path(sys.argv[2]))


if __name__ == "__main__":
    main()
