"""What was reached between two readings."""

import random
import unittest

from vram_exporter._levels import Point, Span, Total, Tracker, between
from vram_exporter._reading import Reading


class Between(unittest.TestCase):
    def test_a_peak_that_rose_is_exact(self):
        self.assertEqual(between(Point(10, 20, None, None), Point(5, 30, None, None), False), Span(30, 30))

    def test_an_older_peak_is_only_a_bound(self):
        self.assertEqual(between(Point(10, 20, None, None), Point(12, 20, None, None), False), Span(12, 20))

    def test_the_totals_bound_the_level_below_an_older_peak(self):
        self.assertEqual(between(Point(10, 99, 100, 90), Point(12, 99, 105, 93), False), Span(12, 15))

    def test_nothing_allocated_is_exact(self):
        self.assertEqual(between(Point(10, 99, 100, 90), Point(4, 99, 100, 96), False), Span(10, 10))

    def test_a_peak_reached_at_a_reading_is_exact(self):
        self.assertEqual(between(Point(20, 20, None, None), Point(5, 20, None, None), False), Span(20, 20))

    def test_a_reset_removes_the_bound_of_the_peak(self):
        self.assertEqual(between(Point(10, 99, None, None), Point(12, 15, None, None), True), Span(15, None))

    def test_after_a_reset_the_totals_still_bound(self):
        self.assertEqual(between(Point(10, 99, 100, 90), Point(12, 15, 105, 93), True), Span(15, 15))

    def test_reset_totals_bound_nothing(self):
        self.assertEqual(between(Point(10, 99, 100, 90), Point(12, 99, 5, 3), False), Span(12, 99))

    def test_without_peak_and_totals_only_the_readings_count(self):
        self.assertEqual(between(Point(10, None, None, None), Point(12, None, None, None), False), Span(12, None))

    def test_spans_join_to_the_higher_level_and_bound(self):
        self.assertEqual(Span(5, 9).join(Span(7, 8)), Span(7, 9))
        self.assertEqual(Span(5, None).join(Span(7, 8)), Span(7, None))

    def test_random_histories_stay_within_their_spans(self):
        chance = random.Random(16)
        exact = 0
        for _ in range(3000):
            current = peak = taken = chance.randrange(50)
            returned = 0
            before, highest, reset = Point(current, peak, taken, returned), current, False
            for _ in range(chance.randrange(8)):
                amount = chance.randrange(20)
                if chance.random() < 0.1:
                    peak, reset = current, reset or peak != current
                elif chance.random() < 0.5:
                    current, taken = current + amount, taken + amount
                else:
                    amount = min(amount, current)
                    current, returned = current - amount, returned + amount
                peak, highest = max(peak, current), max(highest, current)
            span = between(before, Point(current, peak, taken, returned), reset and peak < before.peak)
            if not reset or peak < before.peak:
                self.assertLessEqual(span.low, highest)
                self.assertGreaterEqual(span.high, highest)
                exact += span.low == span.high
        self.assertGreater(exact, 1000)


class Totals(unittest.TestCase):
    def test_a_counter_survives_resets(self):
        total = Total()
        self.assertEqual([total.update(value) for value in (3, 5, 0, 2, 1)], [3, 5, 5, 7, 8])

    def test_an_unknown_counter_is_absent(self):
        total = Total()
        self.assertIsNone(total.update(None))


def reading(allocated, peak, **more):
    return Reading("pytorch", 0, allocated, device="GPU-1", peak=peak, peaks=(peak,), **more)


class Trackers(unittest.TestCase):
    def test_a_reset_by_the_user_does_not_lower_the_peak(self):
        tracker = Tracker()
        for allocated, peak in ((10, 80), (20, 20), (5, 40)):
            tracker.update(reading(allocated, peak))
        self.assertEqual(tracker.peak, 80)

    def test_the_first_reading_does_not_date_an_old_peak(self):
        tracker = Tracker()
        tracker.update(reading(10, 80))
        self.assertEqual((tracker.high, tracker.peak), (10, 80))

    def test_the_highest_level_begins_again_when_it_is_taken(self):
        tracker = Tracker()
        tracker.update(reading(10, 10))
        tracker.update(reading(12, 70))
        self.assertEqual(tracker.high, 70)
        tracker.take()
        tracker.update(reading(11, 70))
        self.assertEqual(tracker.high, 12)

    def test_counters_survive_resets_by_the_user(self):
        tracker = Tracker()
        for retries, failures in ((1, 4), (0, 1)):
            tracker.update(reading(1, 1, retries=retries, out_of_memory=failures))
        self.assertEqual((tracker.retries, tracker.out_of_memory), (1, 5))


if __name__ == "__main__":
    unittest.main()
