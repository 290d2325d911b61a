"""Debian packages for the guests: downloaded once, into a folder, from the repository that this system's apt uses.

The kernels are of other releases and architectures than this system, so apt gets lists of its own. The system is not changed.
"""

import re
import subprocess
import tarfile

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
# The release of the programs in the guests. Its C library must not be newer than that of the compiler.
PROGRAMS = "bookworm"


def repository():
    """The address of Debian's main repository."""
    question = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Component: main"]
    targets = subprocess.run(question, check=True, text=True, stdout=subprocess.PIPE).stdout
    addresses = [address for address in dict.fromkeys(targets.split()) if "security" not in address]
    if not addresses:
        raise SystemExit("kernels: apt knows no repository of Debian, so put the packages into the folder by hand")
    return addresses[0]


class Release:
    """A release of Debian for an architecture, such as bookworm-backports for arm64."""

    def __init__(self, folder, release, arch):
        self.lists, self.release, self.arch = folder / "apt" / f"{release}-{arch}", release, arch

    def apt(self, command, *words, into=None):
        settings = {
            "Dir::Etc::sourcelist": self.lists / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::Lists": self.lists / "lists",
            "Dir::State::status": self.lists / "status",
            "Dir::Cache": self.lists / "cache",
            "APT::Architecture": self.arch,
            "APT::Architectures": self.arch,
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Debug::NoLocking": "true",
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        command = [command, "-q", "-q", *options, *words]
        return subprocess.run(command, cwd=into, check=True, text=True, stdout=subprocess.PIPE).stdout

    def update(self):
        for name in ("lists/partial", "cache/archives/partial"):
            (self.lists / name).mkdir(parents=True, exist_ok=True)
        (self.lists / "status").write_text("")
        (self.lists / "sources.list").write_text(f"deb [signed-by={KEYS}] {repository()} {self.release} main\n")
        self.apt("apt-get", "update")

    def depends(self, package):
        """The packages of the kernel, as far as they have a version in their name, that this one needs."""
        words = self.apt("apt-cache", "depends", "--important", package).split()
        kinds = ("linux-image-", "linux-binary-", "linux-modules-")
        return [word for word in words if word.startswith(kinds) and word.split("-")[2][0].isdigit() and word != package]

    def download(self, packages, into):
        """The files of the packages, in a folder that appears when it is complete."""
        partial = into.with_name(into.name + ".partial")
        partial.mkdir(parents=True, exist_ok=True)
        self.apt("apt-get", "download", *packages, into=partial)
        partial.rename(into)

    def kernel(self, version, into):
        """The packages of the newest kernel of the release, or of one version."""
        self.update()
        names = [f"linux-image-{version}-{self.arch}"] if version else self.depends(f"linux-image-{self.arch}")
        if not names:
            raise SystemExit(f"kernels: {self.release} names no kernel for {self.arch}")
        self.download([*names, *(more for name in names for more in self.depends(name))], into)


def kernel(folder, release, version, arch):
    """The folder with the packages of a kernel. One that is there is used as it is, so a kernel can also be put there by hand."""
    into = folder / "packages" / f"{release}{'=' if version else ''}{version}-{arch}"
    if not into.is_dir():
        Release(folder, release, arch).kernel(version, into)
    return into


def programs(folder, arch):
    """The folder with the packages of the programs in the guest."""
    into = folder / "packages" / f"programs-{arch}"
    if not into.is_dir():
        release = Release(folder, PROGRAMS, arch)
        release.update()
        release.download(["busybox-static", "util-linux", "libcap-ng0"], into)
    return into


def contents(folder, patterns):
    """For each pattern the contents of the regular file in the packages of a folder whose path it matches, or `None`."""
    found = dict.fromkeys(patterns)
    for package in sorted(folder.glob("*.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacker:
            with tarfile.open(fileobj=unpacker.stdout, mode="r|") as archive:
                for member in archive:
                    for pattern in patterns:
                        if member.isfile() and re.fullmatch(pattern, member.name):
                            found[pattern] = member.name, archive.extractfile(member).read()
            unpacker.stdout.read()
        if unpacker.returncode != 0:
            raise SystemExit(f"kernels: {package} cannot be read")
    return list(found.values())
