"""Which call sites grew since the look before, and what is kept for that."""

import unittest

from vram_exporter import _connection, _growth
from vram_exporter._growth import KEPT


class Growth(unittest.TestCase):
    def setUp(self):
        self.growth = _growth.Growth()

    def look(self, now, sites, device="GPU-0"):
        return self.growth.message(now, "pytorch", device, sites)

    def sizes(self, *arguments, **more):
        return [row["bytes"] for row in self.look(*arguments, **more)["sites"]]

    def test_the_form(self):
        self.assertIsNone(self.look(10.0, {("a.py:1 f", "other"): 100, ("a.py:2 g", "other"): 7}))
        message = self.look(21.5, {("a.py:1 f", "other"): 150, ("a.py:2 g", "other"): 7, ("a.py:3 h", "parameters"): 60})
        rows = [{"site": "a.py:3 h", "role": "parameters", "bytes": 60}, {"site": "a.py:1 f", "role": "other", "bytes": 50}]
        self.assertEqual(message, {"type": "growth", "framework": "pytorch", "device": "GPU-0", "seconds": 12, "sites": rows})

    def test_what_shrank_or_went_has_not_grown(self):
        self.look(0.0, {("a", "other"): 100, ("b", "other"): 50, ("c", "other"): 1})
        self.assertEqual(self.look(5.0, {("a", "other"): 99, ("c", "other"): 1})["sites"], [])

    def test_each_look_is_compared_with_the_one_before(self):
        self.look(0.0, {("a", "other"): 100})
        self.assertEqual(self.sizes(1.0, {("a", "other"): 300}), [200])
        self.assertEqual(self.sizes(2.0, {("a", "other"): 310}), [10])

    def test_a_site_in_another_role_is_another_one(self):
        self.look(0.0, {("a", "activations"): 100})
        self.assertEqual(self.look(1.0, {("a", "other"): 100})["sites"], [{"site": "a", "role": "other", "bytes": 100}])

    def test_the_devices_are_apart(self):
        self.look(0.0, {("a", "other"): 100})
        self.assertIsNone(self.look(1.0, {("a", "other"): 200}, device="GPU-1"))
        self.assertEqual(self.sizes(2.0, {("a", "other"): 250}), [150])

    def test_the_seconds_are_whole_and_at_least_one(self):
        self.look(10.0, {})
        seconds = [self.look(now, {})["seconds"] for now in (10.01, 11.01, 13.02, 13.02, 12.0)]
        self.assertEqual(seconds, [1, 1, 3, 1, 1])

    def test_the_ten_that_grew_most(self):
        self.look(0.0, {})
        self.assertEqual(self.sizes(1.0, {("s%d" % size, "other"): size for size in range(1, 16)}), list(range(15, 5, -1)))

    def test_the_line_is_bounded(self):
        self.look(0.0, {})
        message = self.look(1.0, {("\U0001f600" * 100 + str(size), "other"): size for size in range(1, 16)})
        self.assertLessEqual(len(_connection.line(message)), 4096)
        self.assertEqual([row["bytes"] for row in message["sites"]], [15, 14, 13])

    def test_what_is_kept_is_bounded_and_no_growth_is_overstated(self):
        many = {("s%d" % number, "other"): number for number in range(1, KEPT + 101)}
        self.look(0.0, many)
        (before,) = self.growth._before.values()
        self.assertEqual(len(before.sites), KEPT)
        self.assertEqual(self.sizes(1.0, many), [])
        # Site 50 held 50 and was not kept; the largest that was not kept held 100.
        self.assertEqual(self.sizes(2.0, {**many, ("s50", "other"): 400, ("s101", "other"): 111}), [300, 10])


if __name__ == "__main__":
    unittest.main()
