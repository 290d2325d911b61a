#!/usr/bin/env python3
"""Runs the packaged unit under a real systemd, on simulated GPUs, and checks what docs/deploy/systemd.md promises.

    check.py [--exporter PROGRAM] [--simulator LIBRARY] [--watch PROGRAM] [--system FOLDER]

The program `watch` is the example of crates/cuda-probe. It is run in the place of the exporter under the drop-in of the probes, on a library
without a GPU, libfake_libcuda.so, from the folder deps of its build.

FOLDER is the root of another system, for example made by debootstrap with systemd, curl and openssl; without it, this machine's
system is used. Needs root, systemd and the right to create namespaces, cgroups and mounts. Where systemd cannot run, it prints SKIPPED with
the reason and succeeds. With --can-boot, or if VRAM_EXPORTER_TEST_REQUIRE_ALL is set, the exit status is then 77, or 1 if a program is not
installed. Any other failure has the status 1.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, arguments, everything_required, simulator_of, skipped, until
from machine import CannotBoot, Machine, NotInstalled

PAGE = ROOT / "docs/deploy/systemd.md"
UNIT = "/etc/systemd/system/vram-exporter.service"
DROP_INS = UNIT + ".d"
PROBES = ROOT / "deploy/systemd/probes.conf"
WATCH, DRIVER = "/usr/local/bin/watch", "/usr/local/lib/driver/libcuda.so.1"
# Runs `watch` once in the place of the exporter. The name of its file is the last of the drop-ins. What it says goes to a file: journald
# does not always learn to which run a process belonged that has ended at once.
SAID = "/run/trial"
TRIAL = f"""[Service]
Type=oneshot
RemainAfterExit=yes
Restart=no
WatchdogSec=0
StandardOutput=file:{SAID}
StandardError=inherit
ExecStart=
ExecStart={WATCH} 0 {{}}
"""
# A process of another user that has mapped the driver's library.
HOLDER = f"""[Service]
User=1001
Environment=LD_PRELOAD={DRIVER}
ExecStart=/usr/bin/sleep infinity
"""
DEFAULTS = "/etc/default/vram-exporter"
LIBRARY = "/usr/local/lib/libnvml_sim.so"
# The exit status that says that this machine does not permit it.
CANNOT_BOOT = 77
# The bcrypt hashes of "wonderland" and "looking-glass".
ALICE = "$2b$04$abcdefghijklmnopqrstuujZkTwHUiJ9XdZPwKfcfDo7dMp5DjlTu"
BOB = "$2b$04$zyxwvutsrqponmlkjihgfeK5tEcjL8I3xFyn4I2cRQDJpcRj/Jjaq"
# Simulated GPUs, and a shorter watchdog, so that the check need not wait for 30 s.
JUDGE = f"""[Service]
Environment=VRAM_EXPORTER_NVML_LIBRARY={LIBRARY} NVML_SIM_SCENARIO=busy-h200
WatchdogSec=3
RestartSec=100ms
"""
# Journald's priorities of the exporter's levels.
PRIORITY = {"error": "3", "warn": "4", "info": "6", "debug": "7"}


def expect(condition, problem):
    if not condition:
        raise AssertionError(problem)


def documented():
    """The files that the page shows: each block begins with a comment that gives the path."""
    blocks = re.findall(r"^```ini\n# (/etc/\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return dict(blocks)


class Judge:
    def __init__(self, machine):
        self.machine, self.unchecked = machine, []

    # What every check uses.

    def systemctl(self, *words, check=True):
        return self.machine.run("systemctl", *words, check=check)

    def show(self, name):
        return self.systemctl("show", "--value", f"--property={name}", "vram-exporter.service").stdout.strip()

    def kill(self, signal, pid):
        # The shell's own kill: a minimal system has no program of this name.
        self.machine.run("sh", "-c", 'kill -"$1" "$2"', "sh", signal, pid)

    def curl(self, *options):
        """The status code and the body."""
        done = self.machine.run("curl", "--silent", "--max-time", "10", "--write-out", "\n%{http_code}", *options, check=False)
        body, _, status = done.stdout.rpartition("\n")
        return int(status), body

    def metrics(self):
        status, body = self.curl("http://localhost:9836/metrics")
        expect(status == 200, f"/metrics: {status} {body}")
        return body

    def drop_ins(self, *files):
        """Replaces all drop-ins by the judge's own and these files of the page. The service is stopped."""
        self.systemctl("stop", "vram-exporter.socket", "vram-exporter.service", check=False)
        self.systemctl("reset-failed", check=False)
        self.machine.run("rm", "-rf", DROP_INS, DEFAULTS, UNIT.replace(".service", ".socket"))
        self.machine.write(f"{DROP_INS}/judge.conf", JUDGE)
        for path in files:
            self.machine.write(path, documented()[path])
        self.systemctl("daemon-reload")

    def start(self):
        self.systemctl("start", "vram-exporter.service")
        expect(self.show("ActiveState") == "active", "it is not active after its start")
        return int(self.show("MainPID"))

    def entries(self):
        """The journal's entries of the current run that the exporter wrote, as JSON."""
        run = self.show("InvocationID")
        text = self.machine.run("journalctl", "--output=json", f"_SYSTEMD_INVOCATION_ID={run}").stdout
        return [json.loads(line) for line in text.splitlines()]

    # The checks, in the order in which they run.

    def readiness(self):
        """`systemctl start` returns when the port answers; the GPUs are shown within a moment."""
        self.drop_ins()
        self.start()
        status, body = self.curl("http://localhost:9836/healthz")
        expect(status == 200, f"/healthz right after the start: {status} {body}")
        until("the GPU", lambda: "gpu_memory_used_bytes{" in self.metrics())
        expect('simulated="true"' in self.metrics(), "the GPUs are not marked as simulated")

    def confinement(self):
        """No root, no capability, a system-call filter, no new privileges, a read-only system, no home folders."""
        pid = self.show("MainPID")
        fields = dict(line.split(":\t") for line in self.machine.run("cat", f"/proc/{pid}/status").stdout.splitlines() if ":\t" in line)
        expect(int(fields["Uid"].split()[0]) >= 1000, f"runs as uid {fields['Uid']}")
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            expect(int(fields[name], 16) == 0, f"{name} is {fields[name]}")
        expect(fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2", f"NoNewPrivs {fields['NoNewPrivs']} Seccomp {fields['Seccomp']}")

        def inside(*command):
            return self.machine.run("nsenter", f"--target={pid}", "--mount", *command, check=False)

        for path in ("/usr/new", "/etc/new", "/var/new"):
            done = inside("touch", path)
            expect(done.returncode != 0 and "Read-only" in done.stderr, f"the service can write {path}: {done.stderr}")
        self.machine.write("/home/secret", "x")
        expect(inside("cat", "/home/secret").returncode != 0, "the service sees /home")
        expect(inside("touch", "/run/vram-exporter/new").returncode == 0, "the runtime folder cannot be written")

    def devices(self):
        """A device that the unit does not list cannot be opened, although its mode permits it."""
        try_it = ["sh", "-c", ": >>/dev/unlisted"]
        without = self.machine.run("setpriv", "--reuid=65534", "--clear-groups", *try_it, check=False)
        expect(without.returncode == 0, f"another process cannot open the device either: {without.stderr}")
        self.machine.write(f"{DROP_INS}/devices.conf", "[Service]\nExecStartPre=/bin/sh -c ': >>/dev/unlisted'\n")
        self.systemctl("daemon-reload")
        done = self.systemctl("restart", "vram-exporter.service", check=False)
        expect(done.returncode != 0, "a process of the service opened a device that the unit does not list")
        expect("Operation not permitted" in self.machine.journal(), self.machine.journal())

    def limits(self):
        """The limit of the memory reaches the kernel, if systemd has the memory controller."""
        if "memory" not in self.machine.run("cat", "/sys/fs/cgroup/cgroup.controllers").stdout.split():
            self.unchecked.append("MemoryMax: this machine's cgroup version 2 has no memory controller")
            return
        self.drop_ins()
        self.start()
        limit = self.machine.run("cat", f"/sys/fs/cgroup{self.show('ControlGroup')}/memory.max").stdout.strip()
        expect(limit == str(256 << 20), f"memory.max is {limit}")

    def watchdog(self):
        """A stopped process is replaced; while it is healthy, it is not."""
        self.drop_ins()
        first = self.start()
        watchdog = int(self.show("WatchdogTimestampMonotonic"))
        until("a keep-alive", lambda: int(self.show("WatchdogTimestampMonotonic")) > watchdog)
        expect(self.show("NRestarts") == "0", "it was restarted while it was healthy")
        self.kill("STOP", first)
        until("the restart", lambda: self.show("NRestarts") == "1" and self.show("ActiveState") == "active")
        expect(int(self.show("MainPID")) != first, "it is the same process")
        expect("Failed with result 'watchdog'" in self.machine.journal(), self.machine.journal())
        until("the GPU", lambda: "gpu_memory_used_bytes{" in self.metrics())

    def crash(self):
        """A killed process is replaced."""
        self.drop_ins()
        self.kill("KILL", self.start())
        until("the restart", lambda: self.show("NRestarts") == "1" and self.show("ActiveState") == "active")

    def refusal(self):
        """With an invalid configuration it exits with 64, says why at the priority of an error, and is not started again."""
        self.drop_ins()
        self.machine.write(DEFAULTS, "VRAM_EXPORTER_MEMORY_RATE=a thousand\n")
        done = self.systemctl("start", "vram-exporter.service", check=False)
        expect(done.returncode != 0, "it starts")
        expect((self.show("ExecMainStatus"), self.show("ActiveState")) == ("64", "failed"), self.systemctl("status", "vram-exporter", check=False).stdout)
        expect(self.show("NRestarts") == "0", "it was started again")
        said = self.machine.journal("--priority=err", "--output=cat")
        expect("VRAM_EXPORTER_MEMORY_RATE" in said, f"errors in the journal: {said}")

    def journal(self):
        """Each line has the priority of its level."""
        self.drop_ins()
        self.machine.write(DEFAULTS, "VRAM_EXPORTER_LOG_LEVEL=debug\nVRAM_EXPORTER_PATH_PASSWD=/no/such/file\n")
        self.start()
        until("the GPU", lambda: "gpu_memory_used_bytes{" in self.metrics())
        seen = {}
        for entry in self.entries():
            if entry.get("_TRANSPORT") != "stdout":
                continue
            level = re.search(r" level=(\w+) ", entry["MESSAGE"])
            expect(level and entry["MESSAGE"].startswith("ts="), f"not a line of the log: {entry['MESSAGE']}")
            expect(entry["PRIORITY"] == PRIORITY[level[1]], f"priority {entry['PRIORITY']}: {entry['MESSAGE']}")
            expect(entry["SYSLOG_IDENTIFIER"] == "vram-exporter", entry)
            seen[level[1]] = seen.get(level[1], 0) + 1
        expect({"info", "warn", "debug"} <= seen.keys(), f"only these levels were logged: {seen}")

    def secrets(self):
        """A certificate, its key and the web-config file that only root can read reach the service through LoadCredential=."""
        self.drop_ins(f"{DROP_INS}/secrets.conf")
        for name, content in certificate().items():
            self.machine.write(f"/etc/vram-exporter/{name}", content, mode=0o600)
        users = f"tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\nbasic_auth_users:\n  alice: {ALICE}\n"
        self.machine.write("/etc/vram-exporter/web-config.yml", users, mode=0o600)
        pid = self.start()
        environment = self.machine.run("cat", f"/proc/{pid}/environ").stdout.split("\0")
        expect(any(variable.startswith("CREDENTIALS_DIRECTORY=") for variable in environment), "there is no CREDENTIALS_DIRECTORY")
        address = "https://localhost:9836/metrics"
        trusted = ("--cacert", "/etc/vram-exporter/tls.crt")
        expect(self.curl(*trusted, address)[0] == 401, "it answers without a password")
        expect(self.curl(*trusted, "--user", "alice:wonderland", address)[0] == 200, "it refuses the password")
        expect(self.curl("http://localhost:9836/metrics")[0] == 400, "it speaks plain HTTP")
        folder = "/run/credentials/vram-exporter.service"
        other = self.machine.run("setpriv", "--reuid=1001", "--clear-groups", "cat", f"{folder}/tls.key", check=False)
        expect(other.returncode != 0, "another user can read the key")
        # A copy made at the start: a change needs a restart.
        self.machine.write("/etc/vram-exporter/web-config.yml", users.replace("alice", "carol"), mode=0o600)
        self.systemctl("restart", "vram-exporter.service")
        expect(self.curl(*trusted, "--user", "carol:wonderland", address)[0] == 200, "a restart does not read the changed file")

    def reload(self):
        """`systemctl reload` reads a changed web-config file, and fails with an invalid one, which changes nothing."""
        file = "/etc/vram-exporter/web-config.yml"
        self.drop_ins()
        self.machine.write(DEFAULTS, f"VRAM_EXPORTER_WEB_CONFIG_FILE={file}\n")
        self.machine.write(file, f"basic_auth_users:\n  alice: {ALICE}\n")
        pid = self.start()

        def status(user):
            return self.curl("--user", user, "http://localhost:9836/metrics")[0]

        def said(words):
            return lambda: words in self.show("StatusText") and self.show("ActiveState") == "active"

        expect((status("alice:wonderland"), status("bob:looking-glass")) == (200, 401), "the first file does not hold")
        self.machine.write(file, f"basic_auth_users:\n  bob: {BOB}\n")
        self.systemctl("reload", "vram-exporter.service")
        until("the status of the reload", said("web-config file read"))
        expect((status("alice:wonderland"), status("bob:looking-glass")) == (401, 200), "the second file does not hold")
        self.machine.write(file, "basic_auth_users:\n  bob: nonsense\n")
        refused = self.systemctl("reload", "vram-exporter.service", check=False)
        expect(refused.returncode != 0, "a reload with an invalid file succeeds")
        expect(status("bob:looking-glass") == 200 and int(self.show("MainPID")) == pid, "the invalid file has an effect")
        # Valid, but the service must be restarted to accept it: the process refuses it, and says so.
        self.machine.write(file, "{}\n")
        self.systemctl("reload", "vram-exporter.service")
        until("the status of the refusal", said("web-config file not accepted"))
        expect(status("bob:looking-glass") == 200 and status("nobody:x") == 401, "the password is no longer needed")

    def notify_reload(self):
        """Type=notify-reload waits for the exporter, if this systemd has it."""
        version = int(self.machine.run("systemctl", "--version").stdout.split()[1])
        if version < 253:
            self.unchecked.append(f"Type=notify-reload: systemd {version} does not have it")
            return
        file = "/etc/vram-exporter/web-config.yml"
        self.drop_ins()
        self.machine.write(f"{DROP_INS}/type.conf", "[Service]\nType=notify-reload\nExecReload=\n")
        self.systemctl("daemon-reload")
        self.machine.write(DEFAULTS, f"VRAM_EXPORTER_WEB_CONFIG_FILE={file}\n")
        self.machine.write(file, f"basic_auth_users:\n  alice: {ALICE}\n")
        self.start()
        self.machine.write(file, f"basic_auth_users:\n  bob: {BOB}\n")
        self.systemctl("reload", "vram-exporter.service")
        expect(self.curl("--user", "bob:looking-glass", "http://localhost:9836/metrics")[0] == 200, "the reload returned early")

    def sockets(self):
        """systemd holds a socket file with its own owner and mode, and a port below 1024; a connection starts the service."""
        unit = UNIT.replace(".service", ".socket")
        self.drop_ins(unit)
        self.machine.write(DEFAULTS, "VRAM_EXPORTER_WEB_SYSTEMD_SOCKET=true\n")
        self.machine.write(f"{unit}.d/port.conf", "[Socket]\nListenStream=80\n")
        self.systemctl("daemon-reload")
        self.systemctl("enable", "--now", "vram-exporter.socket")
        expect(self.show("ActiveState") == "inactive", "the service was started before a connection")
        path = "/run/vram-exporter.sock"
        expect(self.machine.run("stat", "--format=%a %U %G", path).stdout.strip() == "660 root prometheus", "the socket's owner or mode")
        fetch = ["curl", "--silent", "--fail", "--max-time", "30", "--unix-socket", path, "http://localhost/metrics"]
        for user, group, permitted in (("1001", "1001", True), ("1002", "1002", False)):
            done = self.machine.run("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *fetch, check=False)
            expect((done.returncode == 0) == permitted, f"uid {user}, gid {group}: exit {done.returncode}")
            expect(not permitted or "vram_exporter_build_info" in done.stdout, "no metrics on the socket file")
        expect(self.show("ActiveState") == "active", "the connection did not start the service")
        expect(self.curl("http://localhost:80/healthz")[0] == 200, "port 80 does not answer")
        expect(self.curl("http://localhost:9836/healthz")[0] == 0, "it also listens on its own port")
        self.systemctl("disable", "--now", "vram-exporter.socket")

    def incidents(self):
        """recorder.path in a StateDirectory= holds the incidents across a restart."""
        self.drop_ins(f"{DROP_INS}/incidents.conf")
        self.machine.write(DEFAULTS, "VRAM_EXPORTER_WEB_CONFIG_FILE=/etc/vram-exporter/web-config.yml\n")
        self.machine.write("/etc/vram-exporter/web-config.yml", f"basic_auth_users:\n  alice: {ALICE}\n")
        self.start()
        login, address = ("--user", "alice:wonderland"), "http://localhost:9836/api/v1/incidents"

        def record():
            status, body = self.curl(*login, "--request", "POST", address)
            return json.loads(body)["id"] if status == 201 else None

        identity = until("an incident", record)
        until("its file", lambda: "incident-" in self.machine.run("ls", "/var/lib/vram-exporter/").stdout)
        self.systemctl("restart", "vram-exporter.service")
        until("the incident of the earlier run", lambda: self.curl(*login, f"{address}/{identity}")[0] == 200)

    def allocators(self):
        """Any user may connect to the allocators' socket; its folder goes with the service."""
        self.drop_ins()
        self.start()
        connect = ["curl", "--silent", "--max-time", "5", "--unix-socket", "/run/vram-exporter/allocator.sock", "http://localhost/"]
        done = self.machine.run("setpriv", "--reuid=1002", "--regid=1002", "--clear-groups", *connect, check=False)
        # 7 is "failed to connect"; the socket does not speak HTTP.
        expect(done.returncode != 7, "another user cannot connect to the socket")

    def probes(self):
        """The drop-in of the probes lets the service attach them to another user's library; without it bpf(2) is refused."""
        if self.machine.run("ls", WATCH, DRIVER, check=False).returncode != 0:
            expect(not everything_required(), "the example `watch` is not built: cargo build --package cuda-probe --example watch")
            self.unchecked.append("probes: the example `watch` is not built")
            return
        self.machine.write("/etc/systemd/system/holder.service", HOLDER)
        self.systemctl("daemon-reload")
        self.systemctl("start", "holder.service")
        holder = self.systemctl("show", "--value", "--property=MainPID", "holder.service").stdout.strip()
        mapped = f"/proc/{holder}/maps"
        until("the library is mapped", lambda: DRIVER in self.machine.run("cat", mapped).stdout)
        everything = self.machine.run(WATCH, "0", holder, check=False)
        if ": Multi, " not in everything.stdout:
            self.unchecked.append(f"probes: root cannot attach them here as from Linux 6.6 on: {everything.stdout}{everything.stderr}".strip())
            return

        def trial(drop_in):
            """Whether `watch` succeeds under the unit with this text as the drop-in, and what it says."""
            self.drop_ins()
            self.machine.write(f"{DROP_INS}/probes.conf", drop_in)
            self.machine.write(f"{DROP_INS}/trial.conf", TRIAL.format(holder))
            self.systemctl("daemon-reload")
            self.machine.run("rm", "-f", SAID)
            done = self.systemctl("start", "vram-exporter.service", check=False)
            return done.returncode == 0, self.machine.run("cat", SAID).stdout

        text = PROBES.read_text()
        attached, said = trial(text)
        expect(attached and f"{DRIVER}: Multi, " in said, f"with the drop-in: {said}")
        attached, said = trial("")
        expect(not attached and "PermissionDenied" in said and "missing: [Bpf, Perfmon]" in said, f"without the drop-in: {said}")
        attached, said = trial(re.sub(r"^SystemCallFilter=.*", "", text, flags=re.MULTILINE))
        expect(not attached and "PermissionDenied" in said and "filtered: true" in said, f"without the drop-in's system calls: {said}")
        attached, said = trial(text.replace(" CAP_SYS_PTRACE", ""))
        expect(": Multi, " not in said and "ermission denied" in said, f"without CAP_SYS_PTRACE: {said}")

    def stop(self):
        """The service ends by itself when it is told to, with status 0, and leaves no folder."""
        self.systemctl("stop", "vram-exporter.service")
        expect((self.show("Result"), self.show("ExecMainStatus")) == ("success", "0"), "it did not end by itself")
        expect(self.machine.run("ls", "/run/vram-exporter", check=False).returncode != 0, "/run/vram-exporter is still there")

    def fixed_user(self):
        """A user with the unit's name, as the packages create it, is used instead of a dynamic one."""
        self.machine.run("sh", "-c", "echo vram-exporter:x:990:990::/:/usr/sbin/nologin >>/etc/passwd; echo vram-exporter:x:990: >>/etc/group")
        self.drop_ins()
        pid = self.start()
        owner = self.machine.run("stat", "--format=%u:%g", f"/proc/{pid}").stdout.strip()
        expect(owner == "990:990", f"it runs as {owner}")
        self.systemctl("stop", "vram-exporter.service")

    def score(self):
        """The page states the score of `systemd-analyze security`."""
        table = self.machine.run("systemd-analyze", "security", "--no-pager", "vram-exporter.service").stdout
        score = re.search(r"Overall exposure level for vram-exporter.service: (\d+\.\d)", table)[1]
        expect(f"rates the unit {score} out of 10" in " ".join(PAGE.read_text().split()), f"the score is {score}, the page says something else")
        return score

    def all(self):
        checks = (
            self.readiness, self.confinement, self.score, self.devices, self.limits, self.watchdog, self.crash, self.refusal, self.journal,
            self.secrets, self.reload, self.notify_reload, self.sockets, self.incidents, self.allocators, self.stop, self.fixed_user,
            self.probes,
        )  # fmt: skip
        failed = 0
        for check in checks:
            before = len(self.unchecked)
            try:
                check()
            except (AssertionError, SystemExit, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"FAILED  {check.__name__}: {error}\n{self.machine.journal('--lines=20')}", flush=True)
                continue
            print(f"ok      {check.__doc__}" if len(self.unchecked) == before else f"-       not checked: {self.unchecked[-1]}", flush=True)
        return failed


def certificate():
    """A self-signed certificate for localhost and its key."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", "tls.key", "-out", "tls.crt"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        return {name: Path(folder, name).read_text() for name in ("tls.crt", "tls.key")}


def lay_out(folder, options):
    """The files of the machine: the program where the unit expects it, the simulator, the unit, and what tries the probes, if it is built."""
    unit = (ROOT / "deploy/systemd/vram-exporter.service").read_text()
    program = re.search(r"^ExecStart=(\S+)", unit, re.MULTILINE)[1]
    files = {program: options.exporter, LIBRARY: options.simulator, UNIT: ROOT / "deploy/systemd/vram-exporter.service"}
    watch = options.watch or options.exporter.resolve().parent / "examples/watch"
    driver = watch.parent.parent / "deps/libfake_libcuda.so"
    if watch.is_file() and driver.is_file():
        files |= {WATCH: watch, DRIVER: driver}
    for path, source in files.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def main():
    parser = arguments(__doc__, simulator=True)
    parser.add_argument("--watch", type=Path, help="the example of cuda-probe; by default in the exporter's folder of examples")
    parser.add_argument("--system", type=Path, default=Path("/"))
    parser.add_argument("--can-boot", action="store_true", help=f"only boot; exit with status {CANNOT_BOOT} if systemd does not run here")
    options = parser.parse_args()
    options.simulator = simulator_of(options)
    with tempfile.TemporaryDirectory() as folder:
        # It becomes the root folder of the machine.
        os.chmod(folder, 0o755)
        lay_out(Path(folder), options)
        try:
            with Machine(folder, options.system) as machine:
                print(machine.run("systemctl", "--version").stdout.splitlines()[0])
                if options.can_boot:
                    return 0
                failed = Judge(machine).all()
        except CannotBoot as error:
            if not skipped(f"systemd does not run here: {error}") and not options.can_boot:
                return 0
            return 1 if isinstance(error, NotInstalled) else CANNOT_BOOT
    print(f"{failed} checks failed" if failed else "the unit does what its page says")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
