"""A systemd that runs as the first process of its own namespaces, with a file system made by boot.sh."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import PATIENCE, undone_on_failure, until

HERE = Path(__file__).resolve().parent
# What is needed on this machine, and in the system.
TOOLS = ("unshare", "nsenter", "pivot_root", "mount", "openssl")
PROGRAMS = ("usr/lib/systemd/systemd", "usr/bin/systemctl", "usr/bin/journalctl", "usr/bin/curl", "usr/bin/setpriv", "usr/bin/nsenter")


class CannotBoot(Exception):
    """systemd cannot run here, for a reason that has nothing to do with the exporter."""


class NotInstalled(CannotBoot):
    """A program is missing that an administrator can install."""


class Machine:
    """Use it as a context manager. `files` is a folder that is copied over the root before systemd starts; `system` is the
    root of the system that the machine runs, of which only /usr is used."""

    def __init__(self, files, system):
        check_requirements(system)
        self.files, self.system = files, system
        self.folder, self.process, self.cgroup, self.pid = Path(tempfile.mkdtemp(prefix="systemd-")), None, None, None

    @undone_on_failure
    def __enter__(self):
        self.make_cgroup()
        root = self.folder / "root"
        root.mkdir()
        namespaces = ["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                ["unshare", *namespaces, HERE / "boot.sh", root, self.files, self.system],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=lambda: (self.cgroup / "cgroup.procs").write_text(str(os.getpid())),
            )  # fmt: skip
        end = time.monotonic() + PATIENCE
        state = ""
        while state not in ("running", "degraded"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise CannotBoot(f"systemd did not start ({state or 'no answer'}): {(self.folder / 'log').read_text().strip()}")
            time.sleep(0.1)
            self.pid = self.find()
            if self.pid:
                state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        if state != "running":
            raise SystemExit("a unit failed: " + self.run("systemctl", "--failed", "--no-legend", check=False).stdout)

    def make_cgroup(self):
        """A cgroup of its own, which becomes the root of the cgroups that systemd sees."""
        mounted = self.folder / "cgroup"
        mounted.mkdir()
        run_here("mount", "-t", "cgroup2", "cgroup2", mounted)
        self.cgroup = mounted / f"vram-exporter-judge-{os.getpid()}"
        try:
            self.cgroup.mkdir()
        except OSError as error:
            raise CannotBoot(f"no cgroup can be created: {error}") from None

    def find(self):
        """The pid of systemd as this process sees it, once boot.sh has become systemd."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            try:
                if Path(f"/proc/{pid}/exe").readlink().name == "systemd":
                    return int(pid)
            except OSError:
                pass
        return None

    def run(self, *command, check=True, text=None, timeout=90):
        """Runs a command as root inside the machine."""
        done = subprocess.run(
            ["nsenter", f"--target={self.pid}", "--all", *map(str, command)],
            input=text, stdin=None if text is not None else subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout, cwd="/", start_new_session=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        if check and done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stdout}{done.stderr}{self.journal()}")
        return done

    def write(self, path, content, mode=0o644):
        """Writes a file inside the machine, replacing it as a whole."""
        self.run("mkdir", "-p", Path(path).parent)
        self.run("sh", "-c", 'umask 077; cat >"$1.new"; chmod "$2" "$1.new"; mv "$1.new" "$1"', "sh", path, f"{mode:o}", text=content)

    def journal(self, *options):
        """The journal of the exporter as text."""
        return self.run("journalctl", "--no-pager", "--unit=vram-exporter.service", *options, check=False).stdout

    def __exit__(self, *_):
        if self.process:
            # unshare kills the first process of the namespace with itself, and that ends all others.
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        if self.cgroup and self.cgroup.exists():
            until("the processes of the machine end", self.remove_cgroup)
        mounted = self.folder / "cgroup"
        if mounted.is_mount():
            run_here("umount", mounted)
        shutil.rmtree(self.folder)

    def remove_cgroup(self):
        """Until it succeeds, the error is what is waited for."""
        for folder, _, _ in os.walk(self.cgroup, topdown=False):
            os.rmdir(folder)
        return True


def run_here(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotBoot(f"{command[0]}: {done.stderr.strip()}")


def check_requirements(system):
    if sys.platform != "linux" or os.geteuid() != 0:
        raise CannotBoot("needs root")
    if not (system / "lib").is_symlink():
        raise CannotBoot(f"{system / 'lib'} is not a link to a folder in /usr")
    missing = [tool for tool in TOOLS if not shutil.which(tool)] + [f"{system / name}" for name in PROGRAMS if not (system / name).exists()]
    if missing:
        raise NotInstalled(f"not installed: {' '.join(missing)}")
