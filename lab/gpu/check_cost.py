"""Checks of the cost: CPU, memory and scrape time with 16 processes on the GPU."""

import gc
import json
import os
import shutil
import subprocess
import sys
import time

from children import Crowd
from exporter import Exporter, Server
from harness import cpu_seconds, end, free_port, resident_kib
from results import percentile

HERE = os.path.dirname(os.path.abspath(__file__))


def build(setup, name):
    """Compile a C file of this folder and return the program's path."""
    program = os.path.join(setup.out, name)
    subprocess.run([setup.cc, "-O2", "-o", program, os.path.join(HERE, f"{name}.c"), "-ldl"], check=True)
    return program


class Bare:
    """`bare LIBRARY init`, running inside the `with` block."""

    def __init__(self, setup, program):
        self.command = [program, setup.library, "init"]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self.answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end(self.process)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("bare ended without an answer")
        return json.loads(line)["rss_kib"]

    def resident_kib(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self.answer()


def cpu_share(pid, seconds, each_second=None):
    """CPU seconds per second over `seconds`; `each_second` runs once a second."""
    begun, before = time.monotonic(), cpu_seconds(pid)
    for second in range(seconds):
        time.sleep(max(0.0, begun + second - time.monotonic()))
        if each_second:
            each_second()
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    return (cpu_seconds(pid) - before) / (time.monotonic() - begun)


def nvitop_server(setup, results):
    """A running nvitop-exporter, from the given path or the installed one. If there is none or it does not start, returns None
    and adds a note to the results; the comparison does not affect the outcome."""
    port = free_port()
    environment = {}
    if setup.nvitop and os.path.isdir(setup.nvitop):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [setup.nvitop, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "nvitop_exporter"]
    else:
        found = setup.nvitop or shutil.which("nvitop-exporter")
        command = [found] if found else [sys.executable, "-m", "nvitop_exporter"]
    version = subprocess.run([*command, "--version"], env={**os.environ, **environment}, capture_output=True, text=True)
    if version.returncode != 0:
        results.note("nvitop-exporter", "not on this machine")
        return None
    results.note("nvitop-exporter", version.stdout.strip())
    command += ["--bind-address", "127.0.0.1", "--port", str(port), "--interval", "1"]
    try:
        return Server(command, port, "/metrics", os.path.join(setup.out, "nvitop.log"), environment).__enter__()
    except AssertionError as error:
        print(f"     {error}", flush=True)
        results.note("nvitop-exporter", "does not start, see nvitop.log")
        return None


def cost(setup, results):
    """CPU, memory and scrape time with 16 processes that hold a context."""
    program = build(setup, "bare")
    with Crowd(16, "context"), Bare(setup, program) as bare:
        time.sleep(2)
        with Exporter(setup, "cost") as exporter:
            time.sleep(5)
            own_cost(exporter, bare, results)
            nvitop = nvitop_server(setup, results)
            try:
                if nvitop:
                    time.sleep(5)
                    nvitop_cost(nvitop, results)
                scrape_times(results, exporter, nvitop)
            finally:
                if nvitop:
                    nvitop.__exit__()
            grown = resident_kib(exporter.pid) - bare.resident_kib()
            check_memory(results, "after 4000 scrapes", exporter, bare, grown)
        sampled = subprocess.run([program, setup.library, "sample", "100", "10"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60)
    floor = json.loads(sampled.stdout)
    results.note("bare C loop at 100 Hz", f"{floor['cpu_share'] * 100:.2f} % of a core, call p50 {floor['call_p50_us']} us, p99 {floor['call_p99_us']} us, {floor['rss_kib'] / 1024:.1f} MiB")


def check_memory(results, when, exporter, bare, grown):
    figure = f"{grown / 1024:.2f} MiB ({resident_kib(exporter.pid) / 1024:.1f} over {bare.resident_kib() / 1024:.1f})"
    results.check(f"resident memory over bare nvmlInit, {when}", figure, "<= 8 MiB", grown <= 8 * 1024)


def own_cost(exporter, bare, results):
    share = cpu_share(exporter.pid, 60, exporter.timed_get)
    results.check("CPU at defaults, 16 processes, one scrape a second", f"{share * 100:.3f} % of a core over 60 s", "<= 0.7 %", share <= 0.007)
    alone = cpu_share(exporter.pid, 20)
    results.note("CPU at defaults, 16 processes, no scrape", f"{alone * 100:.3f} % of a core over 20 s")
    grown = resident_kib(exporter.pid) - bare.resident_kib()
    check_memory(results, "after 60 scrapes", exporter, bare, grown)
    results.note("series", str(sum(len(rows) for rows in exporter.scrape().samples.values())))


def nvitop_cost(nvitop, results):
    share = cpu_share(nvitop.pid, 20, nvitop.timed_get)
    series = sum(len(rows) for rows in nvitop.scrape().samples.values())
    results.note("nvitop-exporter cost", f"{share * 100:.2f} % of a core over 20 s, one scrape a second, {resident_kib(nvitop.pid) / 1024:.1f} MiB, {series} series")


def scrape_times(results, exporter, nvitop):
    """2000 scrapes of each kind, each over a new connection, in alternating blocks."""
    sides = {"scrape": lambda: exporter.timed_get(), "scrape with gzip": lambda: exporter.timed_get(gzipped=True)}
    if nvitop:
        sides["nvitop-exporter scrape"] = nvitop.timed_get
    taken = {name: [] for name in sides}
    length = {}
    for get in sides.values():
        for _ in range(20):
            get()
    gc.disable()
    try:
        for _ in range(10):
            for name, get in sides.items():
                for _ in range(200):
                    took, length[name] = get()
                    taken[name].append(took)
    finally:
        gc.enable()
    for name, values in taken.items():
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        figure = f"p50 {p50:.3f} ms, p99 {p99:.3f} ms, {len(values)} new connections, {length[name]} bytes"
        if name.startswith("nvitop"):
            results.note(name, figure)
        else:
            results.check(name, figure, "p50 <= 0.5 ms, p99 <= 2 ms", p50 <= 0.5 and p99 <= 2)


def memory_call_us(gpu, count):
    """Times of `count` memory info calls in microseconds."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        gpu.memory()
        taken.append((time.perf_counter_ns() - begun) / 1000)
    return taken


def stall(setup, results):
    """While other programs hold the driver's lock, a scrape returns at once."""
    gpu = setup.gpu()
    quiet = percentile(memory_call_us(gpu, 500), 0.5)
    # One CUDA process keeps the memory lane at its full rate, so that the load delays this lane too.
    with Crowd(1, "context"), Crowd(2, "driver-load", "--nvml", setup.library):
        with Exporter(setup, "stall") as exporter:
            time.sleep(1)
            held = percentile(memory_call_us(gpu, 200), 0.5)
            taken = []
            for _ in range(400):
                taken.append(exporter.timed_get()[0])
                time.sleep(0.005)
    results.check("driver stall: memory info is delayed", f"p50 {quiet:.1f} us normally, {held:.1f} us with the lock held", "5 times as long", held >= 5 * quiet)
    p50, p99 = percentile(taken, 0.5), percentile(taken, 0.99)
    results.check("driver stall: scrape", f"p50 {p50:.3f} ms, p99 {p99:.3f} ms, max {max(taken):.3f} ms of {len(taken)}", "p99 <= 2 ms", p99 <= 2)
