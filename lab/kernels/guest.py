"""A guest: a kernel in qemu, with nothing but the tests of cuda-probe and what they need, all of it in an initramfs."""

import contextlib
import json
import lzma
import os
import shutil
import stat
import subprocess
import tempfile
import zlib
from pathlib import Path

import packages

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("killed", "probes")
# Longer than any guest took, by far: an emulated one has needed five minutes.
LIMIT = 1500


class Arch:
    def __init__(self, triple, compiler, loader, emulator, machine, console):
        self.triple, self.compiler, self.loader = triple, compiler, loader
        self.emulator, self.machine, self.console = emulator, machine, console


ARCHITECTURES = {
    "amd64": Arch("x86_64-unknown-linux-gnu", "x86_64-linux-gnu-gcc", "lib64/ld-linux-x86-64.so.2", "qemu-system-x86_64", [], "ttyS0"),
    "arm64": Arch(
        "aarch64-unknown-linux-gnu",
        "aarch64-linux-gnu-gcc",
        "lib/ld-linux-aarch64.so.1",
        "qemu-system-aarch64",
        ["-machine", "virt"],
        "ttyAMA0",
    ),
}

# The kernel's own messages come at the end: at once they would be in the middle of the tests' lines.
INIT = """#!/bin/busybox sh
export PATH=/bin TMPDIR=/tmp RUST_BACKTRACE=0
mkdir -p /proc /sys /tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
echo "guest: $(uname -r) $(uname -m)"
[ ! -e /overlay.ko ] || insmod /overlay.ko
for test in TESTS; do
    /tests/deps/$test --nocapture --test-threads=1 </dev/null
    echo "guest: $test ended with $?"
done
dmesg | grep -E 'BUG|Oops|WARNING|Call trace|general protection|soft lockup' | sed 's/^/guest: dmesg: /'
echo "guest: end"
poweroff -f
"""


def build(folder, arch):
    """Compiles the tests; the folder with them and with the library that they load."""
    linker = f"CARGO_TARGET_{arch.triple.upper().replace('-', '_')}_LINKER"
    target = folder / "build"
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(target),
        linker: arch.compiler,
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "CARGO_PROFILE_DEV_STRIP": "symbols",
    }
    command = ["cargo", "test", "--locked", "--no-run", "--package", "cuda-probe", "--target", arch.triple, "--message-format=json"]
    command += [word for test in TESTS for word in ("--test", test)]
    said = subprocess.run(command, cwd=ROOT, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout
    programs = {}
    for line in said.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] in TESTS:
            programs[message["target"]["name"]] = Path(message["executable"])
    library = target / arch.triple / "debug" / "deps" / "libfake_libcuda.so"
    return {**{f"tests/deps/{name}": programs[name] for name in TESTS}, "tests/deps/libfake_libcuda.so": library}


def libraries(arch):
    """The compiler's C library: that for which the tests are compiled."""
    names = {arch.loader: Path(arch.loader).name, **{f"lib/{name}": name for name in ("libc.so.6", "libgcc_s.so.1")}}
    found = {}
    for place, name in names.items():
        command = [arch.compiler, f"-print-file-name={name}"]
        path = Path(subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip())
        if not path.is_absolute():
            raise SystemExit(f"kernels: {arch.compiler} has no {name}")
        found[place] = path
    return found


def programs(folder, name):
    """busybox, which is most commands of the guest, and setpriv, which it does not have as the tests need it."""
    packed = packages.programs(folder, name)
    places = {"bin/busybox": r".*/bin/busybox", "bin/setpriv": r".*/bin/setpriv", "lib/libcap-ng.so.0": r".*/libcap-ng\.so\.0\.[0-9.]+"}
    found = dict(zip(places, packages.contents(packed, list(places.values()))))
    for place, file in found.items():
        if not file:
            raise SystemExit(f"kernels: {packed} has no {place}")
    return {place: data for place, (_, data) in found.items()}


def kernel(folder, release, version, name):
    """The kernel's image, and the module `overlay`, unpacked, or `None` where it is not a module."""
    packed = packages.kernel(folder, release, version, name)
    image, module = packages.contents(packed, [r"\./(boot/vmlinu.*|usr/lib/modules/[^/]+/vmlinuz)", r".*/overlay\.ko(\.xz|\.zst)?"])
    if not image:
        raise SystemExit(f"kernels: {packed} has no kernel")
    path, data = module or ("", None)
    if path.endswith(".xz"):
        data = lzma.decompress(data)
    elif path.endswith(".zst"):
        data = subprocess.run(["zstd", "-q", "-d", "-c"], input=data, check=True, stdout=subprocess.PIPE).stdout
    return image[1], data


def archive(files):
    """An initramfs: a cpio archive of the kind `newc`. A path leads to bytes, to a file, to a link's target or to a device's number."""
    out = bytearray()

    def add(number, name, mode, data=b"", device=(0, 0)):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
        out.extend(b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0")
        out.extend(b"\0" * (-len(out) % 4) + data)
        out.extend(b"\0" * (-len(out) % 4))

    folders = {parent for name in files for parent in Path(name).parents if parent.name}
    for number, parent in enumerate(sorted(folders), 1):
        add(number, str(parent), stat.S_IFDIR | 0o755)
    for number, (name, content) in enumerate(files.items(), len(folders) + 1):
        match content:
            case bytes():
                add(number, name, stat.S_IFREG | 0o755, content)
            case Path():
                add(number, name, stat.S_IFREG | 0o755, content.read_bytes())
            case str():
                add(number, name, stat.S_IFLNK | 0o777, content.encode())
            case _:
                add(number, name, stat.S_IFCHR | 0o600, device=content)
    add(0, "TRAILER!!!", 0)
    compressor = zlib.compressobj(1, wbits=31)
    return compressor.compress(bytes(out)) + compressor.flush()


def accelerated(name):
    """Whether this processor could run the guest itself, with KVM."""
    own = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine)
    return own == name and os.access("/dev/kvm", os.R_OK | os.W_OK)


def command_of(name, image, initramfs, kvm):
    arch = ARCHITECTURES[name]
    processor = ["-accel", "kvm", "-cpu", "host"] if kvm else ["-accel", "tcg", "-cpu", "max"]
    return [
        *[arch.emulator, *arch.machine, *processor, "-smp", "2", "-m", "1024", "-nographic", "-no-reboot", "-nodefaults"],
        *["-serial", "stdio", "-kernel", image, "-initrd", initramfs],
        *["-append", f"console={arch.console} loglevel=1 panic=-1 rdinit=/init"],
    ]


def run(folder, release, version, name, kvm):
    """Boots the kernel and returns what the guest has printed."""
    arch = ARCHITECTURES[name]
    for needed in (arch.emulator, arch.compiler):
        if not shutil.which(needed):
            raise SystemExit(f"kernels: {needed} is not installed")
    image, overlay = kernel(folder, release, version, name)
    commands = ("sh", "mount", "mkdir", "uname", "insmod", "dmesg", "grep", "sed", "poweroff", "unshare")
    files = {
        "init": INIT.replace("TESTS", " ".join(TESTS)).encode(),
        "dev/console": (5, 1),
        "dev/null": (1, 3),
        **{f"bin/{command}": "busybox" for command in commands},
        **programs(folder, name),
        **libraries(arch),
        **build(folder, arch),
        **({"overlay.ko": overlay} if overlay else {}),
    }
    said = folder / "said" / f"{release}{'=' if version else ''}{version}-{name}.txt"
    said.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        kernel_file, initramfs = (Path(work) / "vmlinuz", Path(work) / "initramfs")
        kernel_file.write_bytes(image)
        initramfs.write_bytes(archive(files))
        command = command_of(name, kernel_file, initramfs, kvm)
        with said.open("wb") as out, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=LIMIT)
    return said.read_text(errors="replace").replace("\r", "")
