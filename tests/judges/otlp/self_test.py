"""Shows that the comparison finds what is missing, added, renamed or different.

    python3 tests/judges/otlp/self_test.py
"""

import unittest

import comparison


def series(name, **labels):
    return comparison.key({"__name__": name, "job": "x", "instance": "y", **labels})


class Comparison(unittest.TestCase):
    def setUp(self):
        self.scraped = {
            series("gpu_memory_total_bytes", gpu="0"): [(1, 80.0), (2, 80.0), (3, 80.0)],
            series("gpu_memory_pressure_seconds_total", gpu="0"): [(at, float(at)) for at in range(1, 6)],
            series("d_bucket", le="1.0"): [(1, 4.0), (3, 4.0)],
            series("up"): [(1, 1.0)],
        }
        self.pushed = {
            series("gpu_memory_total_bytes", gpu="0"): [(1.5, 80.0)],
            series("gpu_memory_pressure_seconds_total", gpu="0"): [(2.5, 2.5), (3.5, 3.5)],
            series("d_bucket", le="1"): [(2, 4.0)],
            series("hw_gpu_memory_limit_bytes", hw_id="a"): [(1.5, 80.0)],
            series("target_info", host_name="a"): [(1.5, 1.0)],
        }

    def problems(self):
        return comparison.compare(self.scraped, self.pushed)[0]

    def test_equal_series_are_no_problem(self):
        self.assertEqual(comparison.compare(self.scraped, self.pushed), ([], {"equal": 2, "within": 1, "varying": 0}))

    def test_a_series_that_is_missing_or_added_is_found(self):
        lost = self.pushed.pop(series("gpu_memory_total_bytes", gpu="0"))
        self.assertIn("not pushed", self.problems()[0])
        self.pushed[series("gpu_memory_total_bytes_bytes", gpu="0")] = lost
        self.assertEqual([problem.split(":")[0] for problem in self.problems()], ["not pushed", "not scraped"])

    def test_another_label_is_found(self):
        self.pushed[series("gpu_memory_total_bytes", gpu="1")] = self.pushed.pop(series("gpu_memory_total_bytes", gpu="0"))
        self.assertEqual(len(self.problems()), 2)

    def test_another_value_is_found(self):
        self.pushed[series("gpu_memory_total_bytes", gpu="0")] = [(1.5, 81.0)]
        self.assertIn("other values", self.problems()[0])
        self.setUp()
        self.pushed[series("gpu_memory_pressure_seconds_total", gpu="0")] = [(2.5, 9.0)]
        self.assertIn("other values", self.problems()[0])

    def test_a_name_that_only_begins_like_a_known_one_is_found(self):
        self.pushed[series("target_info_total")] = [(1.5, 1.0)]
        self.pushed[series("hwx")] = [(1.5, 1.0)]
        self.assertEqual(len(self.problems()), 2)


if __name__ == "__main__":
    unittest.main()
