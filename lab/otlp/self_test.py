"""Shows that the comparison finds what is missing, added, renamed or different.

    python3 lab/otlp/self_test.py
"""

import unittest

import collector
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


class Collector(unittest.TestCase):
    def setUp(self):
        self.scraped = {("gpu_up", (("gpu", "0"),)): 1.0, ("gpu_power_watts", (("gpu", "0"),)): 90.0}

    def request(self, kind, point):
        point |= {"attributes": [{"key": "gpu", "value": {"stringValue": "0"}}]}
        metrics = [{"name": "gpu_up", kind: {"dataPoints": [point]}}]
        return {"resourceMetrics": [{"resource": {}, "scopeMetrics": [{"metrics": metrics}]}]}

    def last(self, *requests):
        arrived = collector.Arrived()
        for request in requests:
            arrived.take(request)
        return arrived.series[("gpu_up", (("gpu", "0"),))]

    def test_a_point_is_read(self):
        self.assertEqual(self.last(self.request("gauge", {"asDouble": 1.5})), 1.5)
        self.assertEqual(self.last(self.request("sum", {"asInt": "7"})), 7)
        self.assertEqual(self.last(self.request("histogram", {"count": "3", "sum": 9.0})), 3)

    def test_the_flag_replaces_the_value_and_a_value_the_flag(self):
        value, flag = self.request("gauge", {"asDouble": 1.0}), self.request("gauge", {"flags": 1})
        self.assertIsNone(self.last(value, flag))
        self.assertEqual(self.last(flag, value), 1.0)

    def test_a_series_that_is_twice_in_a_push_is_found(self):
        twice = self.request("gauge", {"asDouble": 1.0})
        [scope] = twice["resourceMetrics"][0]["scopeMetrics"]
        scope["metrics"] *= 2
        arrived = collector.Arrived()
        arrived.take(twice)
        self.assertEqual(len(arrived.repeated), 1)

    def test_equal_values_are_no_problem(self):
        pushed = self.scraped | {("hw.power", ()): 90.0, ("gpu_power_watts", (("gpu", "0"),)): 91.0}
        self.assertEqual(collector.compared(self.scraped, pushed), ([], 1))

    def test_another_value_or_name_is_found(self):
        [value] = collector.compared(self.scraped, self.scraped | {("gpu_up", (("gpu", "0"),)): 0.0})[0]
        self.assertIn("other value", value)
        [name] = collector.compared(self.scraped, self.scraped | {("gpu_ups", ()): 1.0})[0]
        self.assertIn("not in the scrape", name)
        [none] = collector.compared({("gpu_power_watts", ()): 90.0}, {("gpu_power_watts", ()): 90.0})[0]
        self.assertIn("no value", none)


if __name__ == "__main__":
    unittest.main()
