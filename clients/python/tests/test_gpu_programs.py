"""The programs for a GPU, run with the stand-in: a GPU is rarely available, and the programs must work when one is."""

import json
import os
import subprocess
import sys
import unittest

from . import support

VERIFY = os.path.join(support.TESTS, "gpu", "verify_client.py")
RECORD = os.path.join(support.TESTS, "gpu", "record_frameworks.py")


class Programs(support.Case):
    def run_it(self, program, *words):
        out = os.path.join(self.folder, "out.json")
        done = subprocess.run([sys.executable, program, "--out", out, *words], env=support.environment(PYTHONPATH=support.STANDIN, STANDIN_WAIT_FOR_CLIENT="1", JAX_PLATFORMS="none"), capture_output=True, text=True, timeout=300)
        with open(out) as file:
            return done, json.load(file)

    def test_the_checks_pass_with_the_stand_in(self):
        names = ["ladder_native", "ladder_expandable", "out_of_memory", "first_allocation_fails", "caught_failures"]
        done, result = self.run_it(VERIFY, "--only", ",".join(names), "--parallel", "2")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout + json.dumps(result, indent=1)[:5000])
        self.assertEqual({name: check["ok"] for name, check in result["checks"].items()}, dict.fromkeys(names, True))

    def test_a_failed_check_does_not_end_the_others(self):
        done, result = self.run_it(VERIFY, "--only", "jax_on_demand,caught_failures")
        self.assertEqual(done.returncode, 1)
        self.assertEqual((result["checks"]["jax_on_demand"]["ok"], result["checks"]["caught_failures"]["ok"]), (False, True))

    def test_the_record_contains_every_case_that_could_be_recorded(self):
        done, result = self.run_it(RECORD, "--only", "torch_native,torch_expandable,torch_async,jax_on_demand")
        self.assertEqual((done.returncode, result["recorded"]), (0, True), done.stderr)
        for case in ("torch_native", "torch_expandable", "torch_async"):
            self.assertNotIn("error", result["cases"][case], result["cases"][case])
            self.assertEqual(len(result["cases"][case]["moments"]), 9)
        self.assertIn("error", result["cases"]["jax_on_demand"])
        self.assertNotIn("5b7b3b8", json.dumps(result), "a UUID identifies the machine")


if __name__ == "__main__":
    unittest.main()
