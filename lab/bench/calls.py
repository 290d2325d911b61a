"""Counts the driver calls of each subject, to verify that the bare loop makes the same calls as the exporter.

A generated library provides every function of the driver's library, counts each call and jumps to the real function. Counting costs a few
nanoseconds per call, so it is a separate part of the benchmark. In this part all subjects run at the same time, because the number of calls
does not depend on speed."""

import contextlib
import mmap
import platform
import re
import struct
import subprocess
import time
from pathlib import Path

import limit
import measure

# Long enough for one round of the exporter's expensive readings (telemetry.slow-interval), whenever the window begins.
WINDOW = 15.0
SETTLE = 3.0
RATE = 100

# r11 and the flags hold no value on entry to a function, because no argument is ever passed in them (System V ABI, x86-64).
STUB = """
.globl {name}
.type {name}, @function
{name}:
    endbr64
    movq bench_counts@GOTPCREL(%rip), %r11
    movq (%r11), %r11
    lock incq {offset}(%r11)
    movq bench_targets@GOTPCREL(%rip), %r11
    jmpq *{offset}(%r11)
"""
LOADER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const names[] = {%(names)s};
void *bench_targets[%(count)d];
unsigned long long *bench_counts;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("BENCH_CALLS"), O_RDWR);
    bench_counts = mmap(NULL, sizeof bench_targets, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *library = dlopen("%(library)s", RTLD_NOW);
    if (file < 0 || bench_counts == MAP_FAILED || !library) {
        fprintf(stderr, "calls are not counted: %%s\\n", library ? "no file to count in" : dlerror());
        abort();
    }
    close(file);
    for (unsigned i = 0; i < %(count)d; i++)
        bench_targets[i] = dlsym(library, names[i]);
}
"""


def functions(listing):
    """The driver's functions in the output of `nm -D --defined-only`."""
    found = re.findall(r"^[0-9a-f]+ [TWi] (nvml\w+)(?:@\S*)?$", listing, re.MULTILINE)
    return sorted(set(found))


class Counted:
    """The machine with the counting library in place of the driver's library."""

    def __init__(self, machine, out, cc):
        if platform.machine() != "x86_64":
            raise RuntimeError("calls are counted on x86_64 only")
        self.machine, self.gpus = machine, machine.gpus
        self.folder = (Path(out) / "calls").resolve()
        (self.folder / "lib").mkdir(parents=True, exist_ok=True)
        listing = subprocess.run(["nm", "-D", "--defined-only", machine.library], capture_output=True, text=True, check=True)
        self.names = functions(listing.stdout)
        if not self.names:
            raise RuntimeError(f"nm shows no function of NVML in {machine.library}")
        self.library = self.folder / "lib/libnvidia-ml.so.1"
        self.build(cc)

    def build(self, cc):
        stubs = "".join(STUB.format(name=name, offset=8 * number) for number, name in enumerate(self.names))
        listed = ", ".join(f'"{name}"' for name in self.names)
        loader = LOADER % {"names": listed, "count": len(self.names), "library": self.machine.library}
        (self.folder / "stubs.s").write_text(".text\n" + stubs + '\n.section .note.GNU-stack,"",@progbits\n')
        (self.folder / "loader.c").write_text(loader)
        sources = [self.folder / "stubs.s", self.folder / "loader.c"]
        subprocess.run([cc, "-O2", "-shared", "-fPIC", "-o", self.library, *sources, "-ldl"], check=True)

    def for_subject(self, name):
        return CountedFor(self, self.folder / f"{name}.counts")


class CountedFor:
    """The same machine for one subject, with a separate file for its counts."""

    def __init__(self, counted, file):
        self.counted, self.library, self.gpus = counted, counted.library, counted.gpus
        self.file = file
        self.file.write_bytes(bytes(8 * len(counted.names)))

    def environment(self):
        return self.counted.machine.environment() | {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "BENCH_CALLS": str(self.file),
        }

    def counts(self):
        with open(self.file, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as shared:
            numbers = struct.unpack(f"{len(self.counted.names)}Q", shared)
        return dict(zip(self.counted.names, numbers))


def per_second(before, after, seconds):
    """Calls per second by function, without functions that were not called."""
    return {name: (after[name] - before[name]) / seconds for name in after if after[name] > before[name]}


def tolerance(gpus, seconds):
    """Calls per second by which two programs with equal rates may differ, because the window may contain one more round over all GPUs for
    one of them."""
    return 1.5 * gpus / seconds


def differences(ours, bare, least, share=0.1):
    """The functions whose calls per second differ by more than `share` and by more than `least`: (function, ours,
    bare)."""
    for name in sorted(ours.keys() | bare.keys()):
        one, other = ours.get(name, 0.0), bare.get(name, 0.0)
        if abs(one - other) > max(least, share * max(one, other)):
            yield name, one, other


def begin(stack, name, subject, place, options, failures):
    """Starts a subject for the rest of the counting. Returns False if it shows nothing and is left out."""
    try:
        measure.first_data(stack.enter_context(subject.start(place, options.out)), place.gpus)
        return True
    except measure.ShowsNothing as error:
        failures.append(f"calls of {name}: {error}")
        return False


def of_all(found, machine, options, failures):
    """Returns, under `calls`, the calls per second by subject and function, with the bare loop as `bare`; and, under
    `calls_tolerance`, the allowed difference."""
    settle, window = (1.0, 3.0) if options.quick else (SETTLE, WINDOW)
    try:
        counted = Counted(machine, options.out, options.cc)
        with contextlib.ExitStack() as stack:
            places = {name: counted.for_subject(name) for name in [*found, "bare"]}
            for name, subject in found.items():
                if not begin(stack, name, subject, places[name], options, failures):
                    del places[name]
            command = [options.bare, counted.library, "same", RATE, settle + window + 60]
            stack.enter_context(limit.Program(command, places["bare"].environment())).line()
            time.sleep(settle)
            before, begun = {name: place.counts() for name, place in places.items()}, time.monotonic()
            time.sleep(window)
            after, seconds = {name: place.counts() for name, place in places.items()}, time.monotonic() - begun
    except Exception as error:
        failures.append(f"calls: {type(error).__name__}: {error}")
        return {}
    rates = {name: per_second(before[name], after[name], seconds) for name in places}
    # A subject that reads the driver through another program is not counted here.
    rates = {name: rate for name, rate in rates.items() if rate}
    return {"calls": rates, "calls_tolerance": tolerance(machine.gpus, seconds)}
