"""Shows in a second that what the harness judges with can tell right from wrong, on made-up input.

    self_test.py"""

import sys
import threading
import types
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import calls
import client
import exposition
import figures
import goals
import growth
import measure
import proc
import report
import scenario
import spikes
from figures import Figure

MIB = 2**20


class Figures(unittest.TestCase):
    def test_median_and_percentile(self):
        self.assertEqual(figures.median([5, 1, 3]), 3)
        self.assertEqual(figures.median([4, 1, 3, 2]), 2.5)
        hundred = list(range(1, 101))
        self.assertEqual([figures.percentile(hundred, share) for share in (0.5, 0.99, 1.0)], [50, 99, 100])
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


class Processes(unittest.TestCase):
    def test_a_name_with_brackets_and_blanks_shifts_nothing(self):
        columns = ["S"] + ["0"] * 10 + ["150", "50", "30", "20"] + ["0"] * 30
        own, children = proc.stat_seconds("7 (a b) c) " + " ".join(columns))
        self.assertAlmostEqual(own, 200 * proc.TICK)
        self.assertAlmostEqual(children, 50 * proc.TICK)

    def test_memory_that_the_kernel_does_not_tell_is_absent(self):
        told = proc.memory_fields("Name:\tx\nVmHWM:\t  20 kB\nVmRSS:\t  12 kB\nRssAnon:\t 4 kB\n")
        self.assertEqual(told, {"highest": 20, "rss": 12, "anon": 4})

    def test_what_ended_threads_took_is_not_lost(self):
        first = {"1": 1.0, "2": 5.0}
        self.assertAlmostEqual(proc.spent(first, {"1": 1.5, "2": 5.25, "3": 0.25}, False, 9.0), 1.0)
        self.assertAlmostEqual(proc.spent(first, {"1": 1.5, "2": 5.25}, True, 2.0), 2.0 - proc.TICK)
        self.assertAlmostEqual(proc.spent(first, {"1": 1.5, "2": 5.25}, True, 0.5), 0.75)
        self.assertAlmostEqual(proc.spent({}, {}, False, 0.4), 0.4)

    def test_its_own_work_is_seen(self):
        clock = proc.Clock("self")
        sum(number * number for number in range(300_000))
        self.assertGreater(clock.look()[0], 0)
        self.assertGreater(proc.memory("self")["rss"], 1000)


class Expositions(unittest.TestCase):
    TEXT = """# HELP gpu_memory_used_bytes x
gpu_memory_used_bytes{gpu="0",name="a b} c"} 1048576
gpu_memory_used_bytes{gpu="1"} 2e6 1700000000000
gpu_memory_used_MiB{gpu="0"} 3
gpu_memory_grown_bytes_total{gpu="0"} 99
process_host_memory_MiB{pid="1"} 7
gpu_memory_utilization{gpu="0"} 0.5
up 1
"""

    def test_series_are_counted(self):
        self.assertEqual(exposition.count(self.TEXT), 7)
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


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    BODY = b"x" * 10 + b"0\r\n\r\n" + b"y" * 10

    def do_GET(self):
        self.send_response(200)
        if self.server.chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in (self.BODY[:15], self.BODY[15:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(self.BODY)))
            self.send_header("Connection", "close" if self.server.closes else "keep-alive")
            self.end_headers()
            self.wfile.write(self.BODY)

    def log_message(self, *_):
        """Quiet."""


class Clients(unittest.TestCase):
    def served(self, chunked=False, closes=False):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        server.chunked, server.closes, server.daemon_threads = chunked, closes, True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server.server_address[1]

    def test_an_answer_is_whole_over_a_new_and_a_kept_connection(self):
        for chunked in (False, True):
            port = self.served(chunked)
            self.assertEqual(client.get(port).text.encode(), Answers.BODY)
            with client.Kept(port) as kept:
                for _ in range(3):
                    self.assertEqual(kept.get().text.encode(), Answers.BODY)

    def test_a_server_that_closes_is_not_taken_for_one_that_keeps(self):
        port = self.served(closes=True)
        with client.Kept(port) as kept, self.assertRaises(client.NotKept):
            kept.get()
        taken = measure.scrape_times({"it": port}, ("new", "kept"), 0.01, block=2)["it"]
        self.assertIsNone(taken["kept"])
        self.assertGreaterEqual(taken["new"]["count"], 2)

    def test_half_an_answer_is_none(self):
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.assertIsNone(client.whole(bytearray(head[:-1]), False))
        self.assertIsNone(client.whole(bytearray(head + b"5\r\nhel"), False))
        self.assertEqual(client.whole(bytearray(head + b"5\r\nhello\r\n0\r\n\r\n"), False)[2], b"hello")
        self.assertIsNone(client.whole(bytearray(b"HTTP/1.1 200 OK\r\n\r\nabc"), False))
        self.assertEqual(client.whole(bytearray(b"HTTP/1.1 200 OK\r\n\r\nabc"), True)[2], b"abc")


class Calls(unittest.TestCase):
    def test_functions_of_the_driver_and_nothing_else(self):
        listing = "00001 T nvmlInit_v2\n00002 T nvmlShutdown@@libnvidia-ml.so.1\n00003 T other\n         U nvmlUsed\n00004 D nvmlData\n"
        self.assertEqual(calls.functions(listing), ["nvmlInit_v2", "nvmlShutdown"])

    def test_differences(self):
        self.assertEqual(calls.per_second({"a": 1, "b": 2}, {"a": 11, "b": 2}, 5), {"a": 2.0})
        found = list(calls.differences({"a": 100.0, "b": 5.0, "c": 0.1}, {"a": 101.0, "d": 1.0}))
        self.assertEqual(found, [("b", 5.0, 0.0), ("d", 0.0, 1.0)])


def figure(value):
    return Figure(value, value, value, 1)


class Goals(unittest.TestCase):
    def judged(self, simulated, ours=None, **others):
        mine = {"cpu": 0.5, "cpu unscraped": 0.4, "memory": 24, "new p50": 0.3, "new p99": 0.9, "start": 9} | (ours or {})
        table = {"ours": mine, "bare": {"cpu": 0.4, "memory": 20, "start": 8}, "static": {"new p50": 0.25, "new p99": 0.7}}
        table |= {"nvitop": {"cpu": 0.9, "memory": 54, "new p50": 3.1, "new p99": 9.1}} | others
        shown = {subject: {name: value and figure(value) for name, value in of.items()} for subject, of in table.items()}
        shown["ours"] |= {"spikes": (ours or {}).get("spikes", 4), "spikes made": 4}
        return {(goal.what, goal.goal): goal.met for goal in goals.judge(shown, simulated, 7 * MIB)}

    def test_all_met_on_a_gpu(self):
        judged = self.judged(False)
        self.assertEqual(judged.pop(("workload disturbed", "not to be told from none")), None)
        self.assertEqual(set(judged.values()), {True}, judged)

    def test_each_can_be_missed(self):
        worse = {"cpu": 0.95, "cpu unscraped": 0.7, "memory": 60, "new p50": 0.4, "new p99": 1.2, "start": 10.5, "spikes": 3}
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
        results = {"missing": {"all-smi": "not in PATH"}, "growth": {"lines": [], "goals": [vars(goals.Goal("a", "b", "c", False))]}, "failures": ["ours, run 1: gone"], "about": {"driver": "x"}, "quick": False}
        results["goals"] = report.judged(results)
        text = report.markdown(results)
        self.assertIn("| a | b | c | **missed** |", text)
        self.assertIn("all-smi was not measured: not in PATH.", text)
        self.assertIn("FAILED: ours, run 1: gone", text)


class Memory(unittest.TestCase):
    def test_children_are_counted_in(self):
        running = types.SimpleNamespace(pid="self")
        alone, beside = measure.memory(running, None), measure.memory(running, types.SimpleNamespace(most=512))
        self.assertGreaterEqual(beside["highest"], alone["rss"] + 512)
        self.assertEqual(beside["children"], 512)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
