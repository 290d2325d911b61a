"""Tests that the readers find exactly what they should, on invented input and on this process itself."""

import types
import unittest
from unittest import mock

import calls
import exposition
import measure
import proc
import scenario
import spikes

MIB = 2**20


class Processes(unittest.TestCase):
    def test_a_name_with_brackets_and_blanks_shifts_nothing(self):
        columns = ["S"] + ["0"] * 10 + ["150", "50", "30", "20"] + ["0"] * 30
        own, children = proc.stat_seconds("7 (a b) c) " + " ".join(columns))
        self.assertAlmostEqual(own, 200 * proc.TICK)
        self.assertAlmostEqual(children, 50 * proc.TICK)

    def test_memory_that_the_kernel_does_not_tell_is_absent(self):
        fields = proc.memory_fields("Name:\tx\nVmHWM:\t  20 kB\nVmRSS:\t  12 kB\nRssAnon:\t 4 kB\n")
        self.assertEqual(fields, {"highest": 20, "rss": 12, "anon": 4})

    def test_what_ended_threads_took_is_not_lost(self):
        first = {"1": 1.0, "2": 5.0}
        self.assertAlmostEqual(proc.spent(first, {"1": 1.5, "2": 5.25, "3": 0.25}, 0.9), 1.0)
        self.assertAlmostEqual(proc.spent(first, {"1": 1.5, "2": 5.25}, 2.0), 2.0 - 2 * proc.TICK)
        self.assertAlmostEqual(proc.spent(first, {"1": 1.5, "2": 5.25}, 0.5), 0.75)
        self.assertAlmostEqual(proc.spent({}, {}, 0.4), 0.4)

    def looked(self, threads, ticks):
        """The last result of a clock that reads these seconds per thread, and these (own, children's) seconds."""
        with mock.patch.object(proc, "thread_seconds", side_effect=threads), mock.patch.object(proc, "stat_seconds", side_effect=ticks):
            clock = proc.Clock("self")
            return [clock.look() for _ in threads[1:]][-1]

    def test_a_thread_that_ended_stays_counted(self):
        threads = [{"1": 1.0}, {"1": 1.5, "2": 0.5}, {"1": 1.75}]
        self.assertAlmostEqual(self.looked(threads, [(0.0, 0.0)] * 3)[0], 1.25)

    def test_a_thread_that_no_look_saw_is_counted_by_ticks(self):
        own, children = self.looked([{"1": 1.0}, {"1": 1.5}], [(1.0, 2.0), (4.0, 2.5)])
        self.assertAlmostEqual(own, 3.0 - 2 * proc.TICK)
        self.assertAlmostEqual(children, 0.5)

    def test_children_are_added_where_they_are_the_subject_s(self):
        clock = proc.Clock("self")
        clock.look = lambda: (1.0, 3.0)
        clock.begun -= 100
        self.assertGreater(clock.share(True), 3 * clock.share(False))

    def test_its_own_work_is_seen(self):
        clock = proc.Clock("self")
        sum(number * number for number in range(300_000))
        self.assertGreater(clock.look()[0], 0)
        self.assertGreater(proc.memory("self")["rss"], 1000)


class Memory(unittest.TestCase):
    def test_children_are_counted_in(self):
        running = types.SimpleNamespace(pid="self")
        alone, beside = measure.memory(running, None), measure.memory(running, types.SimpleNamespace(most=512))
        self.assertGreaterEqual(beside["highest"], alone["rss"] + 512)
        self.assertEqual(beside["children"], 512)


class Expositions(unittest.TestCase):
    TEXT = """# HELP gpu_memory_used_bytes x
gpu_memory_used_bytes{gpu="0",name="a b} c"} 1048576
gpu_memory_used_bytes{gpu="1"} 2e6 1700000000000
gpu_memory_used_MiB{gpu="0"} 3
gpu_memory_increase_bytes_total{gpu="0"} 99
gpu_memory_moved_bytes_total{gpu="0"} 98
process_host_memory_MiB{pid="1"} 7
gpu_memory_utilization{gpu="0"} 0.5
up 1
"""

    def test_series_are_counted(self):
        self.assertEqual(exposition.count(self.TEXT), 8)
        self.assertEqual(exposition.shown(self.TEXT, "gpu_memory_used_bytes"), 2)
        self.assertEqual(exposition.shown(self.TEXT, "gpu_memory_used"), 0)
        self.assertEqual(exposition.shown(self.TEXT, "up"), 1)
        self.assertEqual(exposition.pids(self.TEXT + 'a{pid="1",x="y"} 1\nb{x="y",pid="22"} 1\nc{ppid="3"} 1\n'), 2)

    def test_only_memory_of_gpus_with_a_unit_counts(self):
        found = exposition.gpu_memory(self.TEXT)
        self.assertEqual(sorted(found.values()), [MIB, 2e6, 3 * MIB])


class Spikes(unittest.TestCase):
    def test_each_is_told_from_the_next(self):
        mibs = spikes.heights(20)
        for lower, higher in zip(mibs, mibs[1:]):
            self.assertLess(lower, spikes.SEEN * higher)

    def caught(self, *shown):
        mibs = spikes.heights(3)
        scrapes = [{"peak": (100 + value) * MIB, "used": 100 * MIB} for value in shown]
        found = spikes.caught({"peak": 100 * MIB, "used": 100 * MIB}, scrapes, mibs)
        return [bool(series) for series in found]

    def test_a_figure_that_keeps_the_highest_shows_all(self):
        low, middle, high = spikes.heights(3)
        self.assertEqual(self.caught(0, low, low, middle, high, high), [True, True, True])

    def test_a_figure_that_saw_one_shows_one(self):
        low, middle, high = spikes.heights(3)
        self.assertEqual(self.caught(0, 0, middle, 0), [False, True, False])
        self.assertEqual(self.caught(high), [False, False, True])

    def test_less_than_nine_tenths_is_not_seen(self):
        self.assertEqual(self.caught(0.89 * spikes.heights(1)[0], 0), [False, False, False])

    def test_a_series_that_comes_with_the_spike_was_at_nothing(self):
        self.assertEqual(spikes.caught({}, [{"new": spikes.heights(1)[0] * MIB}], spikes.heights(1)), ["new"])

    def test_the_scenario_holds_them_at_their_moments(self):
        text = scenario.spiking(7, [(5000, 100), (6100, 120)], 20)
        self.assertIn('start = "4000ms"', text)
        held = [part.split('"')[1::2] for part in text.split("memory = [")[1].split("{")[1:]]
        self.assertEqual([phase[1:] for phase in held[:-1]], [["0MiB", "1000ms"], ["100MiB", "20ms"], ["0MiB", "1080ms"], ["120MiB", "20ms"]])

    def test_pids_are_grouped_and_dealt_out(self):
        self.assertEqual(scenario.runs([9, 3, 4, 5]), [(3, 3), (9, 1)])
        text = scenario.text(2, list(range(100, 132)))
        counts = [int(line.split("=")[1]) for line in text.splitlines() if line.startswith("count = ")]
        self.assertEqual(counts, [2, 15, 1, 15, 1])


class Calls(unittest.TestCase):
    def test_functions_of_the_driver_and_nothing_else(self):
        listing = "00001 T nvmlInit_v2\n00002 T nvmlShutdown@@libnvidia-ml.so.1\n00003 T other\n         U nvmlUsed\n00004 D nvmlData\n"
        self.assertEqual(calls.functions(listing), ["nvmlInit_v2", "nvmlShutdown"])

    def test_differences(self):
        self.assertEqual(calls.per_second({"a": 1, "b": 2}, {"a": 11, "b": 2}, 5), {"a": 2.0})
        found = list(calls.differences({"a": 100.0, "b": 5.0, "c": 0.1}, {"a": 101.0, "d": 1.0}, 0.2))
        self.assertEqual(found, [("b", 5.0, 0.0), ("d", 0.0, 1.0)])

    def test_a_round_more_in_the_window_is_no_difference(self):
        least = calls.tolerance(gpus=8, seconds=15)
        self.assertEqual(list(calls.differences({"a": 16 / 15}, {"a": 8 / 15}, least)), [])
        self.assertEqual([name for name, *_ in calls.differences({"a": 24 / 15}, {"a": 8 / 15}, least)], ["a"])
