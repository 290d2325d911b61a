"""The files of snapshots: their content and their names, and everything that prevents one."""

import os
import pickle
import pickletools
import stat
import unittest
from unittest import mock

from vram_exporter import _memory_viz

from . import support


def snapshot(blocks=3, events=2):
    frames = [{"filename": "/home/me/train.py", "line": 7, "name": "step"}]
    made = [{"address": 4096 * index, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": frames} for index in range(blocks)]
    return {"segments": [{"device": 0, "address": 0, "blocks": made}], "device_traces": [[{"action": "alloc", "addr": 0, "frames": frames}] * events, []]}


class Files(support.Case):
    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.files = self.made()

    def made(self, *parts):
        return _memory_viz.Files(os.path.join(self.folder, *parts), lambda: self.now)

    def name(self, number=1):
        return os.path.join(self.folder, "%s-%d-%d.pickle" % (os.uname().nodename, os.getpid(), number))

    def left(self):
        return sorted(os.listdir(self.folder))

    def test_the_content_is_the_snapshot(self):
        self.assertEqual(self.files.write(snapshot()), self.name())
        with open(self.name(), "rb") as file:
            data = file.read()
        self.assertEqual(pickle.loads(data), snapshot())
        self.assertEqual(next(pickletools.genops(data))[1], 4, "the page reads no newer protocol")
        self.assertEqual(self.left(), [os.path.basename(self.name())])

    def test_only_the_owner_may_read_it(self):
        old = os.umask(0)
        self.addCleanup(os.umask, old)
        path = self.made("a", "b").write(snapshot())
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode), 0o700)

    def test_at_most_four_and_one_in_a_minute(self):
        written = []
        for _ in range(600):
            written.append(self.files.write(snapshot()) is not None)
            self.now += 1
        self.assertEqual([second for second, done in enumerate(written) if done], [0, 60, 120, 180])
        self.assertEqual(len(self.left()), 4)

    def test_no_file_is_overwritten(self):
        with open(self.name(), "w") as file:
            file.write("mine")
        os.symlink(os.path.join(self.folder, "elsewhere"), self.name(2))
        self.assertEqual(self.files.write(snapshot()), self.name(3))
        with open(self.name()) as file:
            self.assertEqual(file.read(), "mine")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "elsewhere")))

    def test_a_part_of_another_prevents_it_and_remains(self):
        with open(self.name() + ".part", "w") as file:
            file.write("mine")
        self.assertIsNone(self.files.write(snapshot()))
        # What fails has reserved nothing; its temporary file is the one of another.
        self.assertEqual(self.left(), [os.path.basename(self.name()) + ".part"])

    def test_names_are_tried_to_a_limit(self):
        with mock.patch.object(_memory_viz, "_NAMES", 2):
            for number in (1, 2):
                with open(self.name(number), "w"):
                    pass
            self.assertIsNone(self.files.write(snapshot()))

    def test_what_is_too_large_is_not_written(self):
        with mock.patch.object(_memory_viz, "ENTRIES", 5):
            self.assertIsNone(self.files.write(snapshot(blocks=4)))
            self.assertIsNotNone(self.files.write(snapshot()))
        self.now += 60
        with mock.patch.object(_memory_viz, "SIZE", 1000):
            self.assertIsNone(self.files.write(snapshot(blocks=1000)))
        self.assertEqual(self.left(), [os.path.basename(self.name())])

    def test_what_takes_too_long_is_not_written(self):
        def clock():
            self.now += 6
            return self.now

        self.assertIsNone(_memory_viz.Files(self.folder, clock).write(snapshot()))
        self.assertEqual(self.left(), [])

    def test_what_fails_leaves_nothing_and_counts(self):
        for error in (OSError(28, "No space left on device"), pickle.PicklingError(), MemoryError(), RecursionError()):
            with mock.patch.object(_memory_viz._Bounded, "write", side_effect=error):
                self.assertIsNone(self.files.write(snapshot()))
            self.assertEqual(self.left(), [])
            self.now += 60
        self.assertIsNone(self.files.write(snapshot()))

    def test_an_interrupt_leaves_nothing(self):
        with mock.patch.object(_memory_viz._Bounded, "write", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                self.files.write(snapshot())
        self.assertEqual(self.left(), [])

    def test_a_snapshot_of_another_form(self):
        for given in ({}, [], {"segments": [{}]}, None):
            self.assertIsNone(self.files.write(given))
        self.assertIsNotNone(self.files.write({"segments": []}))

    def test_folders_that_cannot_be_used(self):
        with open(self.name(), "w"):
            pass
        long = ["x" * 200] * 6
        for parts in ([os.path.basename(self.name())], ["a\nb"], ["a\udcff"], ["\u202e"], long):
            self.assertIsNone(self.made(*parts).write(snapshot()), parts)
        with mock.patch.object(_memory_viz.os, "uname", return_value=mock.Mock(nodename="../a/b\n")):
            self.assertTrue(self.files.write(snapshot()).endswith("/.._a_b_-%d-1.pickle" % os.getpid()))

    def test_a_thread_that_is_writing_is_not_waited_for(self):
        seen = []
        write = _memory_viz._Bounded.write

        def at_the_same_time(bounded, data):
            seen.append(self.files.write(snapshot()))
            return write(bounded, data)

        with mock.patch.object(_memory_viz._Bounded, "write", at_the_same_time):
            self.assertIsNotNone(self.files.write(snapshot()))
        self.assertEqual(set(seen), {None})


if __name__ == "__main__":
    unittest.main()
