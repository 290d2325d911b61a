"""The reader of pprof's format: profiles that the tests make, one that the real JAX made, and hostile ones."""

import base64
import gzip
import json
import os
import unittest

from vram_exporter import _pprof

from . import support

SPACE = ("space", "bytes")
BUFFER = {"kind": "buffer", "device": "cuda:0"}
STEP, MAIN = ("/home/me/train.py", 12, "step"), ("/home/me/train.py", 99, "<module>")

# `gpu/record_jax_profile.py` wrote it on a machine with a real GPU.
with open(os.path.join(support.TESTS, "recorded", "jax_profile.json")) as _file:
    RECORDED = json.load(_file)


class Made(unittest.TestCase):
    def setUp(self):
        support.standin_jax(self)
        from jax._src import heap

        self.heap = heap

    def read(self, *samples, **named):
        return _pprof.samples(self.heap.profile(samples, **named), SPACE)

    def test_a_sample(self):
        (sample,) = self.read(([2, 700], BUFFER, [STEP, MAIN]))
        self.assertEqual((sample.value, sample.labels), (700, BUFFER))
        self.assertEqual(sample.frames[0], {"filename": "/home/me/train.py", "line": 12, "name": "step"})
        self.assertEqual(sample.frames[1]["name"], "<module>")

    def test_samples_share_their_frames(self):
        one, two = self.read(([1, 1], BUFFER, [STEP, MAIN]), ([1, 2], {}, [STEP]))
        self.assertIs(one.frames[0], two.frames[0])
        self.assertEqual(two.labels, {})

    def test_the_value_is_found_by_its_type(self):
        (sample,) = self.read(([700, 2], BUFFER, []), types=[SPACE, ("allocations", "count")])
        self.assertEqual((sample.value, sample.frames), (700, []))
        self.assertIsNone(self.read(([1], BUFFER, []), types=[("cpu", "nanoseconds")]))

    def test_no_samples(self):
        self.assertEqual(self.read(), [])
        self.assertIsNone(_pprof.samples(b"", SPACE), "no type of values either")

    def test_inlined_functions_are_frames_of_their_own(self):
        heap = self.heap
        made = self.heap.profile([([1, 5], {}, [STEP, MAIN])])
        # A location that replaces the first one.
        made += heap.field(4, heap.message((1, 1), (4, heap.message((1, 2), (2, 3))), (4, heap.message((1, 1), (2, 4)))))
        (sample,) = _pprof.samples(made, SPACE)
        self.assertEqual([(frame["name"], frame["line"]) for frame in sample.frames], [("<module>", 3), ("step", 4), ("<module>", 99)])

    def test_numbers_that_are_not_packed(self):
        heap = self.heap
        made = self.heap.profile([([1, 5], {}, [STEP, MAIN])]) + heap.field(2, heap.message((1, 2), (1, 1), (2, 3), (2, 8)))
        sample = _pprof.samples(made, SPACE)[1]
        self.assertEqual((sample.value, [frame["name"] for frame in sample.frames]), (8, ["<module>", "step"]))

    def test_unknown_fields_are_ignored(self):
        heap = self.heap
        made = self.heap.profile([([1, 5], {}, [STEP])]) + heap.field(9, 7) + heap.field(99, b"\xff\xff")
        self.assertEqual(_pprof.samples(made, SPACE)[0].value, 5)

    def test_a_text_may_be_anything(self):
        made = self.heap.profile([([1, 5], {}, [("a\n\x1b.py", 1, "NAME")])]).replace(b"NAME", b"\xff\xfe\0x")
        self.assertEqual(_pprof.samples(made, SPACE)[0].frames, [{"filename": "a\n\x1b.py", "line": 1, "name": "\ufffd\ufffd\0x"}])

    def test_a_line_before_the_first_is_negative(self):
        self.assertEqual(self.read(([1, 5], {}, [("a.py", -1, "f")]))[0].frames[0]["line"], -1)

    def test_the_innermost_frames_of_a_deep_stack(self):
        (sample,) = self.read(([1, 5], {}, [("a.py", line, "f") for line in range(1, 5000)]))
        self.assertEqual([frame["line"] for frame in sample.frames], list(range(1, _pprof.DEPTH + 1)))


class Hostile(Made):
    """All of these are refused as a whole."""

    def refused(self, made):
        self.assertIsNone(_pprof.samples(made, SPACE))

    def test_every_truncation(self):
        made = self.heap.profile([([1, 5], BUFFER, [STEP, MAIN])])
        whole = _pprof.samples(made, SPACE)
        for end in range(len(made)):
            # Between two fields, a part of a profile is a profile; what it lacks is refused if a sample needs it.
            self.assertIn(_pprof.samples(made[:end], SPACE), (None, whole, []), end)
        for end in (1, len(made) - 1, len(made) // 2):
            self.refused(made[:end])

    def test_every_changed_byte_raises_nothing(self):
        made = self.heap.profile([([1, 5], BUFFER, [STEP, MAIN])])
        for at in range(len(made)):
            for value in (0, 1, 0x7F, 0x80, 0xFF, made[at] ^ 7):
                samples = _pprof.samples(made[:at] + bytes([value]) + made[at + 1 :], SPACE)
                self.assertTrue(samples is None or isinstance(samples, list))

    def test_numbers_of_more_than_64_bits(self):
        for number in (b"\x80" * 10 + b"\1", b"\xff" * 9 + b"\2", b"\x80" * 1000000):
            self.refused(self.heap.profile([]) + b"\x48" + number)
        self.assertEqual(_pprof.samples(self.heap.profile([]) + b"\x48" + b"\xff" * 9 + b"\1", SPACE), [], "the highest of 64 bits")

    def test_lengths_beyond_the_end(self):
        for length in (3, 1 << 31, (1 << 64) - 1):
            self.refused(self.heap.profile([]) + b"\x12" + self.heap.varint(length) + b"\x08\x01")

    def test_groups_and_fixed_numbers_do_not_occur(self):
        for kind in (1, 3, 4, 5, 6, 7):
            self.refused(self.heap.profile([]) + bytes([9 << 3 | kind]) + bytes(8))
        self.refused(self.heap.profile([]) + b"\0\0")

    def test_wrong_kinds_of_fields(self):
        heap = self.heap
        for wrong in (heap.field(2, 5), heap.field(6, 5), heap.field(2, heap.field(3, 5)), heap.field(5, heap.field(1, "x"))):
            self.refused(heap.profile([]) + wrong)

    def test_references_to_nothing(self):
        heap = self.heap
        values = (2, b"\1\5")
        for parts in ([(1, 7), values], [(3, heap.message((1, 99), (2, 99))), values], [(1, (1 << 64) - 1), values]):
            self.refused(heap.profile([]) + heap.field(2, heap.message(*parts)))

    def test_values_that_are_not_of_the_types(self):
        for values in ([], [1], [1, 2, 3], [1, -5], list(range(100))):
            self.assertIsNone(self.read((values, BUFFER, [])))

    def test_messages_in_messages(self):
        nested = b""
        while len(nested) < 20000:
            nested = self.heap.field(2, nested)
        self.refused(self.heap.profile([]) + nested)
        self.assertEqual(_pprof.samples(self.heap.profile([]) + self.heap.field(12, nested), SPACE), [], "a field that is not read")

    def test_the_size_is_limited(self):
        made = self.heap.profile([])
        padding = _pprof.SIZE - len(made) - 5
        self.assertEqual(_pprof.samples(made + self.heap.field(99, bytes(padding - 1)), SPACE), [])
        self.refused(made + self.heap.field(99, bytes(padding)))

    def test_the_number_of_parts_is_limited(self):
        made = self.heap.profile([])
        self.assertEqual(_pprof.samples(made + b"2\0" * (_pprof.PARTS - 7), SPACE), [])
        self.refused(made + b"2\0" * (_pprof.PARTS - 6))

    def test_what_is_compressed_is_not_unpacked(self):
        self.refused(gzip.compress(self.heap.profile([([1, 5], BUFFER, [STEP])])))
        self.refused(gzip.compress(bytes(1 << 24)))


class Recorded(unittest.TestCase):
    """A profile of the real JAX."""

    def test_the_bytes_of_each_function_of_the_program(self):
        samples = _pprof.samples(base64.b64decode(RECORDED["profile"]), SPACE)
        by_function = {}
        for sample in samples:
            if sample.labels["kind"] == "buffer":
                self.assertEqual(sample.labels["device"], RECORDED["device"])
                name = next(frame["name"] for frame in sample.frames if frame["filename"].endswith("record_jax_profile.py"))
                by_function[name] = by_function.get(name, 0) + sample.value
        self.assertEqual(by_function, RECORDED["bytes_by_function"])
        self.assertLessEqual(sum(by_function.values()), RECORDED["bytes_in_use"])

    def test_compiled_programs_have_no_device(self):
        samples = _pprof.samples(base64.b64decode(RECORDED["profile"]), SPACE)
        executables = [sample for sample in samples if sample.labels["kind"] == "executable"]
        self.assertTrue(executables)
        self.assertEqual({sample.labels.get("device") for sample in executables}, {None})


if __name__ == "__main__":
    unittest.main()
