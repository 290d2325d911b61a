"""Shows that set-version.py changes the version everywhere, that its check finds each place that has another version, and that
check-crates.py finds what the Rust registry would refuse or could not show. Shows that check-advisories.py refuses an exception that has
no end, and that image-digests.py finds and writes digests and believes no registry that contradicts itself. Shows that build.sh and reproduce.sh refuse wrong arguments before
they begin, and that try.sh names each command that it does not find.

    self_test.py

Works on a copy of the files that git tracks. Needs cargo, and the dependencies of Cargo.lock in cargo's folder.
"""

import datetime
import hashlib
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEW = "98.76.54"
OTHER = "98.76.53"


def run(*command, cwd):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def expect(condition, problem):
    if not condition:
        raise SystemExit(problem)


def copy(to):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        source = ROOT / name
        if name and source.exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to / name, follow_symlinks=False)
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=to, check=True)


def packages(root):
    """The version of each package of the workspace, as cargo reads it with an unchanged lock file."""
    told = run("cargo", "tree", "--locked", "--offline", "--workspace", "--depth", "0", "--prefix", "none", cwd=root)
    expect(told.returncode == 0, told.stderr)
    return {line.split()[0]: line.split()[1].removeprefix("v") for line in told.stdout.splitlines() if line}


def try_version(root):
    """Changes the version in the copy, and back in each place. Returns what was tried, as text."""
    program = root / "release/set-version.py"

    def check():
        return run(program, "--check", cwd=root)

    told = run(program, cwd=root)
    old = told.stdout.strip()
    expect(told.returncode == 0 and re.fullmatch(r"\d+\.\d+\.\d+", old), f"prints {told.stdout!r} {told.stderr}")
    expect(check().returncode == 0, check().stderr)

    changed = run(program, NEW, cwd=root)
    expect(changed.returncode == 0, changed.stderr)
    expect(run(program, cwd=root).stdout.strip() == NEW, "does not print the new version")
    expect(check().returncode == 0, check().stderr)
    versions = packages(root)
    private = {"bench", "exposition", "fake-libcuda", "generated-files", "guard", "properties", "workspace-skips"}
    expect(all(version == ("0.0.0" if name in private else NEW) for name, version in versions.items()), f"cargo reads {versions}")
    expect(len(versions) > len(private), "cargo lists no package")

    # Each place in turn gets another version; Cargo.toml's first one is the version itself, which then differs from all others.
    places = 0
    for name in changed.stdout.split():
        path = root / name
        text = path.read_text()
        for match in re.finditer(re.escape(NEW), text):
            path.write_text(text[: match.start()] + OTHER + text[match.end() :])
            told = check()
            expect(told.returncode != 0 and OTHER in told.stderr, f"{name}:{text.count(chr(10), 0, match.start()) + 1} is not checked")
            places += 1
        path.write_text(text)

    # A place that is gone, a document that names another version, and one that names a version of something else.
    chart = root / "deploy/helm/vram-exporter/Chart.yaml"
    text = chart.read_text()
    chart.write_text(text.replace("appVersion", "applicationVersion"))
    expect("Chart.yaml" in check().stderr, "a missing appVersion is not reported")
    chart.write_text(text)
    new = root / "docs/new.md"
    for line, accepted in (
        (f"vram-exporter-{OTHER}-x86_64-linux-gnu.tar.gz", False),
        (f"vram_exporter-{OTHER}-py3-none-any.whl", False),
        (f"registry.example.com/vram-exporter:{OTHER}", False),
        (f"vram-exporter_{NEW}-1_amd64.deb, vram-exporter {OTHER}, prometheus-{OTHER}", True),
    ):
        new.write_text(line + "\n")
        subprocess.run(["git", "add", "docs/new.md"], cwd=root, check=True)
        expect((check().returncode == 0) == accepted, f"{line}: accepted is not {accepted}")

    for wrong in ("1.2", "v1.2.3", "1.2.3-rc.1", "01.2.3", "--force"):
        expect(run(program, wrong, cwd=root).returncode != 0, f"accepts {wrong}")
    return f"{old} and {NEW}: {places} places in {len(changed.stdout.split())} files, {len(versions) - len(private)} packages"


def try_crates(root):
    """Breaks what the crates tell the registry, one thing at a time. Returns what was tried, as text."""
    program = root / "release/check-crates.py"
    told = run(program, cwd=root)
    expect(told.returncode == 0, f"check-crates.py: {told.stdout} {told.stderr}")
    changes = (
        ("crates/nvml-sim/Cargo.toml", "keywords = ", "# keywords = ", "nvml-sim: has no keywords"),
        ("crates/pod-resources/Cargo.toml", '"kubelet"', '"kubelet client"', "pod-resources: keywords that the registry refuses"),
        ("crates/process-name/Cargo.toml", "license.workspace", "# license.workspace", "process-name: has no license"),
        ("crates/process-name/Cargo.toml", ', "/LICENSE"', "", "process-name: the package has no LICENSE"),
        ("crates/web-config/Cargo.toml", '"/examples", ', "", "web-config: README.md links to examples/exporter.rs"),
        ("crates/cgroup-owner/README.md", "src/tests/pods.txt", "../../docs/owners.md", "cgroup-owner: README.md links to ../../docs/owners.md"),
        ("README.md", "](docs/install.md)", "](docs/installing.md)", "vram-exporter: README.md links to docs/installing.md"),
        ("Cargo.toml", "-linux-arm64/{ bin }", "-linux-aarch64/{ bin }", "vram-exporter: binstall, aarch64-unknown-linux-gnu"),
        ("release/publisher.sh", "REPOSITORY=\n", "REPOSITORY=https://example.com/a/b\n", "nvml-sim: has the repository '', release/publisher.sh"),
    )
    for file, old, new, problem in changes:
        text = (root / file).read_text()
        expect(old in text, f"{file} does not contain {old}")
        (root / file).write_text(text.replace(old, new))
        told = run(program, cwd=root)
        expect(told.returncode != 0 and problem in told.stdout, f"check-crates.py: not found: {problem}: {told.stdout} {told.stderr}")
        (root / file).write_text(text)
    return f"{len(changes)} errors in what the crates tell the registry"


def try_advisories(root):
    """Gives the check of the advisories exceptions with and without an end. Returns what was tried, as text."""
    deny = root / "deny.toml"
    text = deny.read_text()
    expect("\nignore = []\n" in text, "deny.toml ignores an advisory: this test has to keep the entry")
    today = datetime.date.today()
    day = lambda days: (today + datetime.timedelta(days)).isoformat()  # noqa: E731
    entry = lambda reason: f'{{ id = "RUSTSEC-2026-0001", reason = "{reason}" }}'  # noqa: E731
    cases = (
        (entry(f"until {day(0)}: today is the last day"), None),
        (entry(f"until {day(183)}: not on Linux"), None),
        (entry(f"until {day(-1)}: not on Linux"), "was ignored until"),
        (entry(f"until {day(184)}: not on Linux"), "at most 183 days"),
        (entry("not on Linux"), "has no reason of the form"),
        (entry("until 2026-02-30: not on Linux"), "has no reason of the form"),
        (entry(f"until {day(1)}:"), "has no reason of the form"),
        ('{ id = "RUSTSEC-2026-0001" }', "has no reason of the form"),
        ('"RUSTSEC-2026-0001"', "is not of the form"),
        ('{ crate = "ring", reason = "until 2026-12-31: x" }', "is not of the form"),
    )
    for ignored, problem in cases:
        deny.write_text(text.replace("\nignore = []\n", f"\nignore = [{ignored}]\n"))
        told = run(root / "release/check-advisories.py", "--ignored", cwd=root)
        accepted = told.returncode == 0 if problem is None else told.returncode == 1 and problem in told.stderr
        expect(accepted, f"{ignored}: {problem}: {told.stdout} {told.stderr}")
    deny.write_text(text)
    return f"{len(cases)} exceptions for advisories"


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry of images that gives a token to anyone. The tag is the content, and the repository says what is wrong with an answer."""

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == "/token":
            return self.answer(200, b'{"token": "%s"}' % query.encode())
        _, repository, tag = re.fullmatch(r"/v2(/)(.+)/manifests/(.+)", path).groups()
        if not self.headers.get("Authorization", "").endswith(urllib.parse.urlencode({"scope": f"repository:{repository}:pull"})):
            realm = f"http://127.0.0.1:{self.server.server_port}/token"
            return self.answer(401, b"", ("WWW-Authenticate", f'Bearer realm="{realm}",scope="repository:{repository}:pull"'))
        if repository == "prom/gone":
            return self.answer(404, b"")
        kind = "application/vnd.oci.image.manifest.v1+json" if repository == "prom/single" else "application/vnd.oci.image.index.v1+json"
        told = "sha256:" + hashlib.sha256(b"other" if repository == "prom/liar" else tag.encode()).hexdigest()
        return self.answer(200, tag.encode(), ("Content-Type", kind), ("Docker-Content-Digest", told))

    def answer(self, code, body, *headers):
        self.send_response(code)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        pass


def try_images(root):
    """Compares the images that the files name with those of a registry of its own. Returns what was tried, as text."""
    program = root / "release/image-digests.py"
    compose = root / "deploy/docker-compose.yml"
    original = {name: (root / name).read_text() for name in ("Dockerfile", "deploy/docker-compose.yml", ".github/workflows/test.yml")}
    listed = run(program, "--list", cwd=root).stdout.splitlines()
    expect(len(listed) >= 8 and "Dockerfile: debian:bookworm-slim" in listed, f"--list: {listed}")
    expect(not any("vram-exporter" in line for line in listed), f"an image of the project: {listed}")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {**os.environ, "IMAGE_REGISTRY": f"http://127.0.0.1:{server.server_port}"}

        def told(*arguments):
            return subprocess.run([program, *arguments], cwd=root, capture_output=True, text=True, env=environment)

        before = told()
        expect(before.returncode == 1 and before.stderr.count("has no digest") == len(listed), f"without digests: {before.stderr}")
        written = told("--write")
        digest = hashlib.sha256(b"bookworm-slim").hexdigest()
        expect(written.returncode == 0, f"--write: {written.stderr}")
        expect(f"\nARG RUNTIME_IMAGE=debian:bookworm-slim@sha256:{digest}\n" in (root / "Dockerfile").read_text(), "the Dockerfile is not changed")
        expect(told().returncode == 0, f"after --write: {told().stderr}")
        expect(run(program, "--list", cwd=root).stdout.count("@sha256:") == len(listed), "an image has no digest")

        # A tag that has moved.
        pinned = compose.read_text()
        compose.write_text(re.sub(r"(grafana/grafana:)[\d.]+@", r"\g<1>99.0@", pinned))
        moved = told()
        expect(moved.returncode == 1 and "grafana/grafana:99.0 is sha256:" in moved.stderr, f"a tag that moved: {moved.stderr}")
        for repository, problem in (("single", "no list of all architectures"), ("liar", "does not have the digest"), ("gone", "404")):
            compose.write_text(pinned.replace("prom/prometheus:", f"prom/{repository}:"))
            wrong = told("--write")
            expect(wrong.returncode == 1 and problem in wrong.stderr, f"prom/{repository}: {wrong.stderr}")
            expect(compose.read_text() == pinned.replace("prom/prometheus:", f"prom/{repository}:"), f"prom/{repository} has changed the file")
        server.shutdown()
    for name, text in original.items():
        (root / name).write_text(text)
    return f"{len(listed)} images and their digests"


def try_arguments(root):
    """Calls the scripts that make a release with arguments that they must refuse. Returns what was tried, as text."""
    native = run("dpkg", "--print-architecture", cwd=root).stdout.strip()
    other = {"amd64": "arm64", "arm64": "amd64"}[native]
    programs = root / "programs"
    (programs / other).mkdir(parents=True)
    (programs / other / "vram-exporter").touch()
    build, reproduce = ["release/build.sh"], ["release/reproduce.sh"]
    cases = (
        (build, ["0.0.0"], None, "usage: release/build.sh"),
        (build, ["0.0.0", "out"], other, f"add {native}"),
        (build, ["0.0.0", "out"], "amd64 mips", "has mips"),
        (build, ["0.0.0", "out"], "", "RELEASE_ARCHITECTURES is empty"),
        (build, ["--programs", "missing", "0.0.0", "out"], native, f"there is no {root}/missing/{native}/vram-exporter"),
        (build, ["--programs", "programs", "0.0.0", "out"], other, f"there is no {programs}/{other}/vram;"),
        (reproduce, [], None, "usage: release/reproduce.sh"),
        (reproduce, ["work", "--program", "programs"], None, "usage: release/reproduce.sh"),
        (reproduce, ["work", "--programs", "missing"], None, f"there is no folder {root}/missing"),
        (reproduce, ["programs"], None, f"{programs} is not empty"),
    )
    for command, arguments, architectures, problem in cases:
        environment = {key: value for key, value in os.environ.items() if key != "RELEASE_ARCHITECTURES"}
        if architectures is not None:
            environment["RELEASE_ARCHITECTURES"] = architectures
        told = subprocess.run([*command, *arguments], cwd=root, capture_output=True, text=True, env=environment)
        expect(told.returncode != 0 and problem in told.stderr, f"{command} {arguments}: no '{problem}': {told.stdout} {told.stderr}")
        expect(not (root / "out").exists(), f"{command} {arguments}: makes the folder before it refuses")
    # With this machine's programs, the other architecture is possible: what is refused next is the version.
    for name in ("vram", "libnvml_sim.so"):
        (programs / other / name).touch()
    (programs / native).mkdir()
    for name in ("vram-exporter", "vram"):
        (programs / native / name).touch(mode=0o755)
    command, environment = [*build, "--programs", "programs", "0.0.0", "out"], {**os.environ, "RELEASE_ARCHITECTURES": other}
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)
    expect("not 0.0.0" in told.stderr, f"{other} with the programs for {native}: {told.stderr}")
    # A relative path is that of the caller.
    told = run(root / "release/reproduce.sh", "work", "--programs", "missing", cwd=programs)
    expect(f"there is no folder {programs}/missing" in told.stderr, f"a relative folder: {told.stderr}")
    return f"{len(cases) + 2} calls of build.sh and reproduce.sh"


def try_requirements(root):
    """Calls try.sh where it finds almost no command: it names each. Returns what was tried, as text."""
    almost_empty = root / "almost-empty"
    almost_empty.mkdir()
    for command in ("bash", "id"):
        (almost_empty / command).symlink_to(shutil.which(command))
    program = root / "tests/judges/release/try.sh"
    told = subprocess.run([program, "out", "try"], cwd=root, capture_output=True, text=True, env={"PATH": str(almost_empty)})
    wanted = (
        "debootstrap (package debootstrap)", "ip (package iproute2)", "jq (package jq)", "rpm2archive (package rpm)", "readelf (package binutils)",
        "umoci (FOLDER/bin)", "nfpm (FOLDER/bin)", "helm (FOLDER/packaging/bin)",
    )  # fmt: skip
    for line in wanted:
        expect(line in told.stderr, f"try.sh does not name {line}: {told.stderr}")
    expect(told.returncode == 1 and not (root / "try").exists(), f"try.sh goes on without its commands: exit {told.returncode}")
    return f"{len(wanted)} commands that try.sh misses"


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy(root)
        print(try_crates(root))
        print(try_advisories(root))
        print(try_images(root))
        print(try_version(root))
        print(try_arguments(root))
        print(try_requirements(root))
    return 0


if __name__ == "__main__":
    sys.exit(main())
