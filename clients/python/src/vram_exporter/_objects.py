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
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple


def referring(types: Sequence[Any]) -> List[Any]:
    """The instances of exactly these types, found by their references to their types. The threads of the program stop for 5 to 15 ns for each
    object and type."""
    return _of_types(types, map(gc.get_referrers, *((found,) for found in types))) if types else []


def listed(types: Sequence[Any]) -> List[Any]:
    """The same, found by the types of all objects. The threads of the program stop for 0.1 to 0.6 µs for each object, for any number of
    types."""
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
    """What a search of all objects found, as long as it is true: each instance refers to its type, so a type that is referred to as often as at
    the search has as many instances."""

    def __init__(self) -> None:
        self._references: Optional[List[Any]] = None
        self._counts: Dict[int, int] = {}
        self._empty: Dict[int, int] = {}

    def find(self, lasting: Sequence[Any], short: Sequence[Any]) -> Tuple[List[Any], List[Any]]:
        """The instances of exactly these types: of some whose instances exist for long, such as modules, and of some that have new instances all
        the time, such as tensors."""
        counts = {id(found): sys.getrefcount(found) for found in lasting}
        if self._references is not None and counts == self._counts:
            found = [reference() for reference in self._references]
            if not any(value is None for value in found):
                return found, referring([type_ for type_ in short if self._empty.get(id(type_)) != sys.getrefcount(type_)])
        empty = {id(type_): sys.getrefcount(type_) for type_ in short}
        instances = listed([*lasting, *short])
        found = [value for value in instances if id(type(value)) in counts]
        others = [value for value in instances if id(type(value)) not in counts]
        try:
            self._references, self._counts = [weakref.ref(value) for value in found], counts
        except TypeError:  # A class without weak references.
            self._references = None
        for value in others:
            empty.pop(id(type(value)), None)
        self._empty = empty
        return found, others
