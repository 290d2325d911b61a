"""The client with the real exporter on a simulated GPU.

`VRAM_EXPORTER_BINARY` is the path of the exporter, and `VRAM_EXPORTER_SIMULATOR` is the path of libnvml_sim.so.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

from . import support
from .support import DEVICE, MIB
from .test_leaks import LEAKING

BINARY = os.environ.get("VRAM_EXPORTER_BINARY")
SIMULATOR = os.environ.get("VRAM_EXPORTER_SIMULATOR")

JOB = """
    import sys, vram_exporter, torch
    vram_exporter.start(interval=0.02)
    kept = [torch.empty(100 << 20), torch.empty(20 << 20)]
    sys.stdin.readline()
    del kept[1]
    with vram_exporter.measure("forward"): high = torch.empty(60 << 20); del high
    sys.stdin.readline()
    try: torch.empty(1 << 40)
    except torch.OutOfMemoryError: pass
    sys.stdin.readline()
"""

JAX_JOB = """
    import sys, vram_exporter, jax
    from vram_exporter import _uuid
    _uuid.of_ordinal = lambda ordinal: "%s"

    def weights():
        made = []
        for _ in range(5):
            made.append(jax.ones(20 << 20))
        return made

    kept = weights()
    vram_exporter.start(interval=0.02, sites=True)
    sys.stdin.readline()
""" % (
    DEVICE
)


class Daemon(support.Case):
    def setUp(self):
        super().setUp()
        if not (BINARY and SIMULATOR and os.path.exists(BINARY) and os.path.exists(SIMULATOR)):
            self.missing("the exporter (VRAM_EXPORTER_BINARY and VRAM_EXPORTER_SIMULATOR)", tool=True)

    def export(self, job, memory, *options):
        """Starts an exporter on a machine with one GPU, on which the job holds `memory` MiB in addition to a context of 520 MiB."""
        scenario = self.write("machine.toml", 'seed = 1\n[[gpu]]\nmodel = "H200"\nuuid = "%s"\n[[process]]\npid = %d\nmemory = "%dMiB"\nuid = 0\nuser = "root"\n' % (DEVICE, job.pid, memory))
        variables = dict(support.environment(), NVML_SIM_SCENARIO=scenario, NVML_SIM_PROCFS=os.path.join(self.folder, "proc"))
        command = [BINARY, "--nvml.library=" + SIMULATOR, "--web.listen-address=127.0.0.1:0", "--path.procfs=/proc", "--allocator.socket=" + self.path, *options]
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.addCleanup(self.log.close)
        exporter = subprocess.Popen(command, env=variables, stderr=self.log)
        self.addCleanup(exporter.wait)
        self.addCleanup(exporter.kill)

        def address():
            self.assertIsNone(exporter.poll(), self.read_log())
            found = re.search(r'listening.*?address="?([0-9.]+:\d+)', self.read_log())
            return found and found[1]

        self.url = "http://" + self.until(address)
        return exporter

    def read_log(self):
        with open(self.log.name) as file:
            return file.read()

    def until(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            self.assertLess(time.monotonic(), deadline, self.read_log()[-2000:] + str(getattr(self, "latest", ""))[-3000:])
            time.sleep(0.05)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as reply:
            self.latest = reply.read().decode()
        return self.latest

    def values(self, job):
        """The values of the job's metric families, by name without the prefix and the framework."""
        text = self.get("/metrics")
        rows = re.findall(r'^gpu_process_(\w+)\{([^}]*pid="%d"[^}]*)\} (\S+)$' % job.pid, text, re.M)
        faults = re.findall(r'^\w*faults_total\{[^}]*source="allocator"[^}]*\} ([1-9]\S*)$', text, re.M)
        self.assertEqual(faults, [], "the exporter refused a message")
        return {name + (":" + labels.split('region="')[1].split('"')[0] if 'region="' in labels else ""): int(float(value)) for name, labels, value in rows if re.match(r"[0-9.e+]+$", value)}

    def test_the_exporter_shows_what_the_program_reports(self):
        job = self.program(JOB)
        self.export(job, 120)
        shown = self.until(lambda: (lambda v: v if v.get("allocator_allocated_bytes") == 120 * MIB else None)(self.values(job)))
        self.assertEqual(shown["memory_used_bytes"], shown["memory_outside_allocator_bytes"] + shown["allocator_reserved_bytes"])
        self.assertEqual(shown["memory_outside_allocator_bytes"], 520 * MIB)
        self.go_on(job)
        shown = self.until(lambda: (lambda v: v if "allocator_region_peak_bytes:forward" in v and v.get("allocator_allocated_bytes") == 100 * MIB else None)(self.values(job)))
        self.assertEqual(shown["allocator_region_peak_bytes:forward"], 160 * MIB)
        self.assertEqual(shown["allocator_peak_bytes"], 160 * MIB)
        self.assertEqual(shown["allocator_reserved_bytes"], 160 * MIB)
        self.go_on(job)
        self.until(lambda: self.values(job).get("allocator_out_of_memory_total") == 1)
        event = self.until(lambda: [row for row in json.loads(self.get("/api/v1/events")).get("events", []) if str(1 << 40) in json.dumps(row)])
        self.assertIn("out_of_memory", json.dumps(event))
        self.go_on(job)
        self.finish(job)
        self.until(lambda: "allocator_allocated_bytes" not in self.values(job))

    def test_the_exporter_shows_the_lines_that_hold_the_memory_of_jax(self):
        job = self.program(JAX_JOB, STANDIN_MEMORY=str(120 * MIB))
        self.export(job, 120, "--allocator.sites=true")

        def sites():
            self.values(job)  # Fails if the exporter has refused a message.
            rows = re.findall(r'^gpu_process_allocator_(?:site|role)_bytes\{[^}]*framework="jax",([^}]*)\} (\S+)$', self.latest, re.M)
            return {labels: int(float(value)) for labels, value in rows}

        shown = {'role="unknown"': 100 * MIB, 'site="<string>:9 weights",role="unknown"': 100 * MIB}
        shown.update({'site="other",role="any"': 0, 'site="not recorded",role="any"': 0})
        self.assertEqual(self.until(sites), shown)
        self.go_on(job)
        self.finish(job)

    def test_a_restarted_exporter_gets_all_values_again(self):
        job = self.program(JOB)
        first = self.export(job, 120)
        self.until(lambda: self.values(job).get("allocator_allocated_bytes") == 120 * MIB)
        first.kill()
        first.wait()
        self.assertTrue(os.path.exists(self.path), "a killed exporter leaves its socket")
        self.export(job, 120)
        shown = self.until(lambda: (lambda v: v if v.get("allocator_allocated_bytes") == 120 * MIB else None)(self.values(job)))
        self.assertEqual(shown["allocator_peak_bytes"], 120 * MIB)
        self.go_on(job), self.go_on(job), self.go_on(job)
        self.finish(job)

    def test_a_leak_is_found_through_the_exporter(self):
        job = self.program("", command=[sys.executable, self.write("train.py", LEAKING.format(sites=True, before="", then=""))])
        self.export(job, 120, "--allocator.sites=true")
        self.until(lambda: self.values(job).get("allocator_allocated_bytes"))
        with socket.socket(socket.AF_UNIX) as asker:
            asker.settimeout(60)
            asker.connect(self.path)
            asker.sendall(b'{"type":"leaks","version":2,"pid":%d,"seconds":1,"looks":3}\n' % job.pid)
            with asker.makefile() as lines:
                part, end, *more = map(json.loads, lines)
        self.assertEqual((end["type"], end.get("reason"), more), ("answered", None, []))
        self.assertRegex(part["sites"][0]["site"], r"^train\.py:\d+ step$")
        self.assertEqual((part["device"], len(part["sites"]), part["looks"]), (DEVICE, 1, 3))
        self.assertGreater(part["steps"], 0)
        self.go_on(job)
        self.finish(job)


if __name__ == "__main__":
    unittest.main()
