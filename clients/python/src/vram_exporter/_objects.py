"""Finds the program's objects of certain types among those that Python's garbage collector lists.

CPython raises a SystemError in a program that makes a tuple from an iterator while someone else refers to the tuple. So a list of objects in
which there may be such a tuple exists only within one call, whose steps are all functions in C: between these, the interpreter does not change
threads.

Invariants: no code of the program runs, except finalisers: types are compared by identity. What is kept between two searches are weak
references.
"""

from __future__ import annotations

import gc
import sys
import weakref
from functools import partial
from itertools import chain, compress, repeat
from typing import Any, Dict, Iterable, List, Optional, Sequence


def referring(types: Sequence[Any]) -> List[Any]:
    """The instances of exactly these types, found by their references to their types. The threads of the program stop for about 0.1 µs for
    each ten objects and type."""
    return _of_types(types, map(gc.get_referrers, *((found,) for found in types))) if types else []


def listed(types: Sequence[Any]) -> List[Any]:
    """The same, found by the types of all objects. The threads of the program stop for about 0.1 to 0.5 µs for each object, for any number
    of types."""
    # Before 3.12, making an object can begin a collection, and so run finalisers that are Python code.
    if sys.version_info < (3, 12) and gc.get_count()[0] + 100 > gc.get_threshold()[0]:
        gc.collect(0)
    return _of_types(types, map(gc.get_objects, (None,)))


def _of_types(types: Sequence[Any], lists: Iterable[List[Any]]) -> List[Any]:
    """The objects of these types in lists that are made here. A list can contain the iterators, so what is left of them at the end must not
    refer to it."""
    known = {id(found) for found in types}
    twice = chain.from_iterable(map(repeat, lists, repeat(2)))
    chosen = map(partial(map, known.__contains__), map(partial(map, id), map(partial(map, type), twice)))
    return list(chain.from_iterable(map(compress, twice, chosen)))


class Remembered:
    """Objects that exist for long, such as modules. They are searched again only if one has ended or a type is referred to more or less often
    than at the last search: each instance refers to its type."""

    def __init__(self) -> None:
        self._references: Optional[List[Any]] = None
        self._counts: Dict[int, int] = {}

    def find(self, types: Sequence[Any]) -> List[Any]:
        """The instances of exactly these types."""
        counts = {id(found): sys.getrefcount(found) for found in types}
        if self._references is not None and counts == self._counts:
            found = [reference() for reference in self._references]
            if not any(value is None for value in found):
                return found
        found = listed(types)
        try:
            self._references, self._counts = [weakref.ref(value) for value in found], counts
        except TypeError:  # A class without weak references.
            self._references = None
        return found
