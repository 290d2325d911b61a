"""The search for the program's objects, and what it must not do to the program."""

import gc
import sys
import threading
import unittest
from unittest import mock

from vram_exporter import _objects


class Base:
    pass


class Slots(Base):
    __slots__ = ("other",)


class Sub(Base):
    pass


SEARCHES = (lambda types: list(_objects.referring(types)),)


class Searches(unittest.TestCase):
    def test_the_instances_of_exactly_these_types_are_found(self):
        kept = [Base(), Slots(), Sub(), (Base,), {Base: Base}]
        for search in SEARCHES:
            self.assertCountEqual(map(id, search([Base, Slots])), map(id, kept[:2]))
            self.assertEqual(search([]), [])

    def test_no_list_of_objects_is_left(self):
        kept = Base()
        for search in SEARCHES:
            gc.collect()
            before = sys.getrefcount(kept)
            found = search([Base])
            self.assertEqual(sys.getrefcount(kept), before + 1)
            del found

    def test_no_code_of_the_program_runs(self):
        ran = []

        class Meta(type):
            def __hash__(cls):
                ran.append("hash")
                return 7

            def __eq__(cls, other):
                ran.append("eq")
                return True

        class Hostile(metaclass=Meta):
            __class__ = property(lambda self: ran.append("class"))

            def __getattribute__(self, name):
                ran.append(name)

            def __eq__(self, other):
                ran.append("eq")
                return True

            __hash__ = None

        kept = [Hostile(), Base()]
        ran.clear()
        for search in SEARCHES:
            self.assertEqual([type(found) for found in search([Base])], [Base])
            self.assertEqual(len(search([Hostile])), 1)
        self.assertEqual(ran, [])
        del kept

    def test_a_program_that_makes_tuples_meanwhile(self):
        ended, made, failures = threading.Event(), [], []

        def program():
            while not ended.is_set():
                try:
                    made.append(len(tuple(Base for number in range(50))))
                except SystemError as error:
                    failures.append(error)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        thread = threading.Thread(target=program)
        thread.start()
        try:
            for _ in range(100):
                for search in SEARCHES:
                    search([Base, Sub])
        finally:
            sys.setswitchinterval(interval)
            ended.set()
            thread.join()
        self.assertEqual((failures, set(made)), ([], {50}))


class RememberedObjects(unittest.TestCase):
    def setUp(self):
        self.remembered, self.searches = _objects.Remembered(), 0
        search = _objects.Remembered._search

        def counted(remembered, *arguments):
            self.searches += 1
            return search(remembered, *arguments)

        patched = mock.patch.object(_objects.Remembered, "_search", counted)
        patched.start()
        self.addCleanup(patched.stop)

    def find(self, *types):
        return sorted(map(id, self.remembered.find(types or (Base, Sub), [])[0]))

    def test_they_are_searched_again_when_there_are_others(self):
        kept = [Base(), Sub()]
        for _ in range(3):
            self.assertEqual(self.find(), sorted(map(id, kept)))
        self.assertEqual(self.searches, 1)
        kept.append(Base())
        self.assertEqual((self.find(), self.searches), (sorted(map(id, kept)), 2))
        kept.pop()
        self.assertEqual((self.find(), self.searches), (sorted(map(id, kept)), 3))

    def test_one_that_replaces_another(self):
        kept = [Base()]
        first = self.find()
        kept[0] = None
        kept[0] = Base()
        self.assertEqual((self.find(), self.searches), ([id(kept[0])], 2))
        del first

    def test_other_types(self):
        kept = [Base(), Sub()]
        self.find(Base)
        self.assertEqual((self.find(Base, Sub), self.searches), (sorted(map(id, kept)), 2))

    def test_objects_without_weak_references_are_searched_each_time(self):
        kept = [Holder(1)]
        self.assertEqual(self.find(Holder), [id(kept[0])])
        self.assertEqual(self.find(Holder), [id(kept[0])])
        self.assertEqual(self.searches, 2)

    def test_types_without_instances_are_left_out_until_they_have_one(self):
        lasting, short = [Base], [Sub, Slots]
        kept = [Base(), Sub()]
        for _ in range(2):
            found, types = self.remembered.find(lasting, short)
            self.assertEqual((list(map(id, found)), types), ([id(kept[0])], [Sub]))
            del found
        kept.append(Slots())
        self.assertEqual(self.remembered.find(lasting, short)[1], [Sub, Slots])
        self.assertEqual(self.searches, 1)


class Holder:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


if __name__ == "__main__":
    unittest.main()
