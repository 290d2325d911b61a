"""Shows with invented figures that the judgement fails exactly when it should."""

import contextlib
import io
import types
import unittest
from unittest import mock

import bench
import figures
import goals
import growth
import measure
import report
from figures import Figure

MIB = 2**20


class Figures(unittest.TestCase):
    def test_median_and_percentile(self):
        self.assertEqual(figures.median([5, 1, 3]), 3)
        self.assertEqual(figures.median([4, 1, 3, 2]), 2.5)
        hundred = list(range(1, 101))
        self.assertEqual([figures.percentile(hundred, share) for share in (0.5, 0.99, 1.0)], [50, 99, 100])
        self.assertEqual(figures.percentile(range(1, 151), 0.99), 149)
        self.assertEqual(figures.percentile([7], 0.99), 7)

    def test_what_no_run_has_is_no_figure(self):
        self.assertIsNone(Figure.of([None, None]))
        self.assertEqual(Figure.of([3, None, 1, 2]), Figure(2, 1, 3, 3))

    def test_a_ratio_needs_both(self):
        self.assertEqual(figures.ratio(Figure.of([3]), Figure.of([2])), 1.5)
        self.assertIsNone(figures.ratio(None, Figure.of([2])))
        self.assertIsNone(figures.ratio(Figure.of([2]), Figure.of([0])))

    def test_a_line_and_how_far_a_point_is_from_it(self):
        base, each, off = figures.line([(1, 5), (2, 7), (4, 11)])
        for got, wanted in zip((base, each, off), (3, 2, 0)):
            self.assertAlmostEqual(got, wanted)
        self.assertGreater(figures.line([(1, 1), (2, 2), (3, 30)])[2], 0.2)
        self.assertIsNone(figures.line([(1, 5), (1, 6)]))

    def test_a_plane(self):
        rows = [(1, 64), (2, 128), (4, 256), (8, 0), (8, 128), (8, 4096)]
        found = figures.plane([(gpus, processes, 2 + 3 * gpus + 0.5 * processes) for gpus, processes in rows])
        for got, wanted in zip(found, (2, 3, 0.5)):
            self.assertAlmostEqual(got, wanted, places=6)
        self.assertIsNone(figures.plane([(1, 2, 3), (2, 4, 6)]))


def figure(value):
    return Figure(value, value, value, 1)


class Goals(unittest.TestCase):
    def judged(self, simulated, ours=None, **others):
        scrapes = {"new p50": 0.3, "new p99": 0.9, "alone p50": 0.3, "alone p99": 0.9}
        mine = {"cpu": 0.5, "cpu unscraped": 0.4, "memory": 24, "start": 9} | scrapes | (ours or {})
        static = {"alone p50": 0.25, "alone p99": 0.7}
        table = {"ours": mine, "bare": {"cpu": 0.4, "memory": 20, "start": 8}, "static": static}
        table |= {"nvitop": {"cpu": 0.9, "memory": 54, "new p50": 3.1, "new p99": 9.1}} | others
        shown = {subject: {name: value and figure(value) for name, value in of.items()} for subject, of in table.items()}
        shown["ours"] |= {"spikes": (ours or {}).get("spikes", 4), "spikes made": 4}
        return {(goal.what, goal.goal): goal.met for goal in goals.judge(shown, simulated, 7 * MIB)}

    def test_all_met_on_a_gpu(self):
        judged = self.judged(False)
        self.assertEqual(judged.pop(("disturbance of workloads", "not distinguishable from none")), None)
        self.assertEqual(set(judged.values()), {True}, judged)

    def test_each_can_be_missed(self):
        worse = {"cpu": 0.95, "cpu unscraped": 0.7, "memory": 60, "start": 10.5, "spikes": 3}
        worse |= {"new p50": 0.4, "new p99": 1.2, "alone p50": 0.4, "alone p99": 1.2}
        met = {name for name, met in self.judged(False, worse).items() if met}
        self.assertEqual({what for what, _ in met}, {"the program's file"})

    def test_what_is_missing_is_not_judged(self):
        judged = self.judged(True, {"memory": None}, nvitop={})
        self.assertIsNone(judged["resident memory", "at most a third of the lightest peer (none)"])
        self.assertIsNone(judged["scrape p50, new connection", "10 times faster than the fastest peer (none)"])

    def test_the_fastest_peer_is_the_one_that_counts(self):
        judged = self.judged(True, {"memory": 10}, **{"all-smi": {"cpu": 2, "memory": 31, "new p50": 2.9, "new p99": 20}})
        self.assertTrue(judged["resident memory", "at most a third of the lightest peer (all-smi)"])
        self.assertFalse(judged["scrape p50, new connection", "10 times faster than the fastest peer (all-smi)"])
        self.assertTrue(judged["start to first data", "under 100 ms"])


class Runs(unittest.TestCase):
    def test_few_runs_have_figures_and_no_verdict(self):
        goal = goals.Goal("a", "b", "c", False)
        for runs, reported in ((1, "not judged: 1 run"), (4, "not judged: 4 runs"), (5, "**missed**")):
            self.assertIn(f"| a | b | c | {reported} |", report.goal_lines(goals.of_enough([goal], runs)))

    def test_the_results_of_few_runs_hold_no_verdict(self):
        for runs, verdicts in ((4, set()), (5, {True, False})):
            results = {"quick": False, "about": {"driver": "simulated", "binary_bytes": 7 * MIB}}
            results["runs"] = [{"subject": "ours", "cpu": 0.01, "start_ms": 500}] * runs
            results["growth"] = {"goals": [], "points": []}
            self.assertEqual({goal["met"] for goal in report.judged(results)} - {None}, verdicts)
            results["growth"] = {"goals": [vars(goals.Goal("a", "b", "c", True))], "points": [{"runs": [0] * 5}, {"runs": [0] * runs}]}
            self.assertEqual(report.judged(results | {"runs": []})[0]["met"], True if verdicts else None)

    def test_each_run_begins_with_another(self):
        names = ["a", "b", "c"]
        self.assertEqual([bench.rotated(names, number)[0] for number in range(4)], ["a", "b", "c", "a"])
        self.assertEqual(sorted(bench.rotated(names, 5)), names)

    def test_one_that_shows_nothing_is_left_out_of_what_follows(self):
        asked = []

        def one(name, *_):
            asked.append(name)
            if name == "quiet":
                raise measure.ShowsNothing("nothing")
            return {"subject": name}

        results, saved = {"missing": {}, "failures": []}, []
        plan, options = types.SimpleNamespace(runs=3), types.SimpleNamespace(subjects=[])
        with mock.patch.object(bench, "one", one), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            bench.compare({"quiet": None, "ours": None}, None, options, plan, results, lambda: saved.append(len(results["runs"])))
        self.assertEqual(asked, ["quiet", "ours", "ours", "ours"])
        self.assertEqual((list(results["missing"]), len(results["failures"]), saved), (["quiet"], 1, [0, 1, 2, 3]))


class Growth(unittest.TestCase):
    def medians(self, corner=1.0):
        found = {}
        for point in growth.points(quick=False):
            cost = 1 + point.gpus + point.gpus * point.processes / 100
            found[point] = {name: cost for name in growth.FIGURES} | {"series": 5}
        for name in growth.FIGURES:
            found[growth.Point(*growth.CORNER)][name] *= corner
        return found

    def test_the_lines_go_through_the_centre(self):
        gpus, processes, hz = growth.CENTRE
        found = growth.along(self.medians(), processes=processes, hz=hz)
        self.assertEqual([number for number, _ in found], list(growth.GPUS))
        found = growth.along(self.medians(), gpus=gpus, hz=hz)
        self.assertEqual([number for number, _ in found], list(growth.PROCESSES))

    def test_the_cost_between_neighbours_shows_where_it_bends(self):
        self.assertEqual(growth.steps([(1, 10), (2, 12), (4, 16), (8, 40)]), [2, 2, 6])

    def test_what_is_linear_is_and_what_is_not_is_not(self):
        of = lambda corner: [goal.met for goal in growth.judge(self.medians(corner))][:4]
        self.assertEqual(of(1.0), [True] * 4)
        self.assertEqual(of(1.3), [False] * 4)
        self.assertEqual([goal.met for goal in growth.judge({})], [None] * 5)

    def test_the_corner_has_a_limit_of_its_own(self):
        for p99, met in ((9.9, True), (10.1, False)):
            medians = self.medians()
            medians[growth.Point(*growth.CORNER)]["p99"] = p99
            self.assertEqual([goal.met for goal in growth.judge(medians)][4], met)


class Reports(unittest.TestCase):
    def run_of(self, subject, cpu, **more):
        memory = {"rss": 2048, "highest": 4096, "anon": 1024}
        return {"subject": subject, "cpu": cpu, "memory_steady": memory, "spikes": ["a", None]} | more

    def test_medians_ratios_and_spikes(self):
        scrape = {"new": {"p50": 2.0, "p99": 4.0}, "kept": None}
        runs = [self.run_of("ours", cpu, scrape=scrape, static=scrape, start_ms=[3, 1, 2]) for cpu in (0.01, 0.03, 0.02)]
        runs.append(self.run_of("all-smi", 0.04, start_ms=9, memory_after_scrapes={"highest": 8192}))
        table = report.table(runs)
        self.assertEqual((table["ours"]["cpu"].median, table["ours"]["cpu"].least), (2.0, 1.0))
        self.assertEqual((table["ours"]["start"].median, table["all-smi"]["highest"].median), (2, 8))
        self.assertIsNone(table["ours"]["kept p50"])
        self.assertEqual(table["static"]["new p99"].median, 4)
        text = "\n".join(report.comparison(table))
        self.assertIn("| CPU, one scrape a second, % of a core | 2 (1 to 3) | 4 [2.00] |  |", text)
        self.assertIn("| spikes of 20 ms caught | 3 of 6 | 1 of 2 |  |", text)

    def test_what_could_not_be_taken_is_told(self):
        results = {"missing": {"all-smi": "not in PATH"}, "failures": ["ours, run 1: gone"], "about": {"driver": "x"}, "quick": False}
        results["growth"] = {"lines": [], "goals": [vars(goals.Goal("a", "b", "c", False))], "points": [{"runs": [0] * 5}]}
        results["goals"] = report.judged(results)
        text = report.markdown(results)
        self.assertIn("| a | b | c | **missed** |", text)
        self.assertIn("all-smi was not measured: not in PATH.", text)
        self.assertIn("FAILED: ours, run 1: gone", text)
