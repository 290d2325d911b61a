#!/usr/bin/env python3
"""Runs the tests of crates/cuda-probe under other kernels, in qemu, and prints a row of a table for each.

In each guest a program makes 1,001 calls while another watches it, and every one must be seen with its size. The watching program is
killed, and no breakpoint of its probes may be left in the calling program, which must go on. Then tests/probes.rs runs. A kernel that
the crate refuses must be refused with its message.

usage: check.py [--folder FOLDER] [--emulate] [KERNEL...]

A KERNEL is RELEASE[=VERSION]/ARCH: a release of Debian, a version as in the name of a package linux-image-VERSION-ARCH, and amd64 or
arm64. The packages are downloaded with apt into FOLDER/packages/RELEASE[=VERSION]-ARCH. A folder that is there is used as it is, and the
network is not needed: a kernel from elsewhere can be put there by hand. For Ubuntu's those are linux-image-unsigned-VERSION and
linux-modules-VERSION. What a guest has printed is in FOLDER/said.

Needs Debian with qemu-system-x86 and qemu-system-arm, a C compiler for each architecture (gcc-x86-64-linux-gnu, gcc-aarch64-linux-gnu with
libc6-dev-arm64-cross), the Rust targets, and zstd for Ubuntu's kernels. No root, no network in the guest.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import guest
from judge import judge

KERNELS = [
    "bullseye/amd64",
    "bookworm/amd64",
    "bookworm-backports=6.12.43+deb12/amd64",
    "trixie/amd64",
    "trixie-backports=6.18.15+deb13/amd64",
    "trixie-backports/amd64",
    "bookworm/arm64",
    "trixie/arm64",
]
HEAD = ["kernel", "architecture", "processor", "way", "functions", "calls seen", "lost", "after kill -9"]


def row(cells):
    return f"| {' | '.join(cells)} |"


def kernel(text):
    name, slash, arch = text.rpartition("/")
    if not slash or arch not in guest.ARCHITECTURES:
        raise argparse.ArgumentTypeError(f"{text} is not RELEASE[=VERSION]/amd64 or /arm64")
    release, _, version = name.partition("=")
    return release, version, arch


def self_test():
    """A good guest is good, and each of its lines matters."""
    line = (
        "kernel: {} 28 functions, 1001 calls seen, 0 lost, code changed at 0, 28 and 0 places, "
        "a call takes 3.5µs, 32.1µs and 3.9µs, gone after 205.5ms\n"
    )
    tests = "guest: killed ended with 0\nguest: probes ended with 0\n"
    new = f"guest: 6.12.48+deb13-amd64 x86_64\n{line.format('Multi')}{line.format('PerfEvent')}{tests}guest: end\n"
    skip = "SKIPPED: a: bpf(BPF_LINK_CREATE, uprobe_multi): no\n"
    old = f"guest: 6.1.0-50-arm64 aarch64\n{line.format('PerfEvent')}{skip}{tests}guest: end\n"
    refused = f"guest: 6.12.9+bpo-amd64 x86_64\nSKIPPED: a: no probe is attached (CVE-2025-21834)\n{tests}guest: end\n"
    older = f"guest: 5.10.0-32-amd64 x86_64\nSKIPPED: a: the kernel 5.10.0-32-amd64 is too old: bpf\n{tests}guest: end\n"
    for said in (new, old, refused, older):
        assert judge(said)[1] == [], (said, judge(said))
    changes = [
        (new, "1001 calls", "1000 calls"),
        (new, "0 lost", "1 lost"),
        (new, "28 functions", "27 functions"),
        (new, "at 0, 28 and 0", "at 0, 28 and 1"),
        (new, "at 0, 28 and 0", "at 0, 27 and 0"),
        (new, "and 3.9µs", "and 31.9µs"),
        (new, "kernel: Multi", "kernel: PerfEvent"),
        (new, "killed ended with 0", "killed ended with 101"),
        (new, "probes ended with 0", "probes ended with 134"),
        (new, "guest: end", ""),
        (new, "guest: end", "guest: dmesg: BUG: bad\nguest: end"),
        (new, "guest: end", "SKIPPED: a: bpf(BPF_LINK_CREATE, uprobe_multi): no\nguest: end"),
        (new, "guest: 6.12.48+deb13-amd64 x86_64", "Kernel panic"),
        (new, "6.12.48", "6.12.13"),
        (old, "uprobe_multi", "perf_event"),
        (old, "kernel: PerfEvent", "kernel: Multi"),
        (refused, "CVE-2025-21834", "a reason"),
        (refused, "SKIPPED: a: no probe is attached (CVE-2025-21834)", ""),
        (older, "is too old", "is odd"),
    ]
    for said, part, instead in changes:
        assert part in said and judge(said.replace(part, instead))[1], (part, instead)
    print(f"kernels: {len(changes)} wrong results are found")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=guest.ROOT / "target" / "kernels", help="for packages and guests (%(default)s)")
    parser.add_argument("--emulate", action="store_true", help="do not use KVM")
    parser.add_argument("--self-test", action="store_true", help="check the judgement of guests, without one")
    parser.add_argument("kernels", nargs="*", type=kernel, metavar="KERNEL", help=f"default: {' '.join(KERNELS)}")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    lines, problems = [row(HEAD), row(["---"] * len(HEAD))], []
    for release, version, arch in options.kernels or [kernel(text) for text in KERNELS]:
        kvm = guest.accelerated(arch) and not options.emulate
        cells, wrong = judge(guest.run(folder, release, version, arch, kvm))
        cells.insert(2, "KVM" if kvm else "emulated")
        lines.append(row(cells))
        hint = "; try --emulate" if kvm and cells[0] == "did not boot" else ""
        problems += [f"{release}{'=' if version else ''}{version}/{arch}: {what}{hint}" for what in wrong]
        print(lines[-1], flush=True)
    print("\n" + "\n".join(lines))
    for problem in problems:
        print(f"kernels: {problem}", file=sys.stderr)
    return sys.exit(1 if problems else 0)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"kernels: {' '.join(map(str, error.cmd))} ended with {error.returncode}")
