#!/usr/bin/env python3
"""Compares the container images that this repository names with what their registries have under these names.

    release/image-digests.py            fails for each image that is named without a digest, and for each whose tag has another digest by now
    release/image-digests.py --list     prints the images, and asks no registry
    release/image-digests.py --write    writes the digest that each tag has now to the files: name:tag@sha256:…

A digest is that of the list of all architectures. It is computed from what the registry sends and never taken from its words, so that a wrong
answer cannot end up in a file. Images of this project are not compared. The variable IMAGE_REGISTRY, a URL, replaces every registry.
"""

import hashlib
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(os.environ.get("IMAGE_DIGESTS_ROOT") or Path(__file__).resolve().parents[1])
# The files in which images are named, and what is before an image there.
PLACES = (
    ("Dockerfile", r"(?m)^ARG [A-Z_]+_IMAGE="),
    (".github/workflows/*.yml", r"(?m)^ +(?:container|image): +"),
    ("deploy/docker-compose*.yml", r"(?m)^ +image: +"),
    ("deploy/kubernetes/**/*.yaml", r"(?m)^ +(?:- )?image: +"),
    ("deploy/helm/*/templates/*.yaml", r"(?m)^ +(?:- )?image: +"),
)
IMAGE = r"((?:[\w.-]+(?::\d+)?/)*[\w.-]+):([\w.-]+)(?:@(sha256:[0-9a-f]{64}))?(?=\s|$)"
OWN = "vram-exporter"
TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
HUB = "registry-1.docker.io"
# Seconds; and the most bytes of an answer.
PATIENCE, LIMIT = 30, 4 << 20


class Unanswered(Exception):
    """A registry did not say which digest a tag has."""


def named():
    """Each image that a file names: the file, the match, whose groups are the name, the tag and perhaps the digest."""
    for glob, before in PLACES:
        for file in sorted(ROOT.glob(glob)):
            for found in re.finditer(before + IMAGE, file.read_text()):
                if found.group(1).rsplit("/", 1)[-1] != OWN:
                    yield file, found


def place(name):
    """The registry and the repository of an image, as Docker reads its name."""
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return HUB, name if rest else f"library/{name}"


def request(url, headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
        body = answer.read(LIMIT + 1)
        if len(body) > LIMIT:
            raise Unanswered(f"{url}: more than {LIMIT} bytes")
        return answer.headers, body


def token(challenge):
    """A token as the registry's `WWW-Authenticate` asks for it; anonymous, so only for public images."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge or ""))
    realm = fields.pop("realm", "")
    if not re.match(r"https://|http://127\.0\.0\.1[:/]", realm):
        raise Unanswered(f"the registry wants a login: {challenge!r}")
    _, body = request(f"{realm}?{urllib.parse.urlencode(fields)}", {})
    told = json.loads(body)
    return told.get("token") or told["access_token"]


def digest(name, tag):
    """The digest that the tag has now."""
    registry, repository = place(name)
    url = f"{os.environ.get('IMAGE_REGISTRY') or 'https://' + registry}/v2/{repository}/manifests/{tag}"
    headers = {"Accept": ", ".join(TYPES)}
    try:
        try:
            told, body = request(url, headers)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            headers["Authorization"] = f"Bearer {token(error.headers.get('WWW-Authenticate'))}"
            told, body = request(url, headers)
    except (OSError, ValueError, KeyError) as error:
        raise Unanswered(f"{url}: {error}") from error
    if told.get_content_type() not in TYPES:
        raise Unanswered(f"{url}: {told.get_content_type()} is no list of all architectures")
    computed = "sha256:" + hashlib.sha256(body).hexdigest()
    if told.get("Docker-Content-Digest", computed) != computed:
        raise Unanswered(f"{url}: the content does not have the digest that the registry names")
    return computed


def main(arguments):
    if arguments not in ([], ["--list"], ["--write"]):
        raise SystemExit(__doc__)
    found = list(named())
    if arguments == ["--list"]:
        for file, image in found:
            print(f"{file.relative_to(ROOT)}: {image.group(1)}:{image.group(2)}{'@' + image.group(3) if image.group(3) else ''}")
        return 0
    problems, now = [], {}
    for image in sorted({(match.group(1), match.group(2)) for _, match in found}):
        try:
            now[image] = digest(*image)
        except Unanswered as error:
            problems.append(str(error))
    for file, match in reversed(found):
        name, tag, pinned = match.groups()
        current = now.get((name, tag))
        if current is None or current == pinned:
            continue
        if arguments == ["--write"]:
            # From the last to the first, so that the places of the others stay right.
            text = file.read_text()
            file.write_text(f"{text[: match.start(1)]}{name}:{tag}@{current}{text[match.end() :]}")
        elif pinned:
            problems.append(f"{file.relative_to(ROOT)}: {name}:{tag} is {current} by now, and not {pinned}")
        else:
            problems.append(f"{file.relative_to(ROOT)}: {name}:{tag} has no digest; it is {current}")
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems and arguments != ["--write"]:
        print(f"{len(found)} images are those that their registries have")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
