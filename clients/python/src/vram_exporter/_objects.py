"""Finds the program's objects of certain types: those that refer to one of the types, as each instance does.

A list of all objects of Python's garbage collector is never made. CPython raises a SystemError in a program that makes a tuple from an iterator
while someone else refers to the tuple, and such a list does. The lists that are made here have the objects that refer to the types. They exist
only within one call, whose steps are all functions in C: between these, the interpreter does not change threads. An iterator of this module must
be used up in such a call.

Invariants: no code of the program runs, except finalisers: types are compared by identity. What is kept between two searches are weak
references.
"""

from __future__ import annotations

import gc
import sys
import weakref
from functools import partial
from itertools import chain, compress, repeat, starmap
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple


def named(module: str, name: str) -> Any:
    """What a module that the program has imported calls so; `None` if there is none. Nothing is imported to find it."""
    return getattr(sys.modules.get(module), "__dict__", {}).get(name)


def together(*steps: Tuple[List[Any], Iterable[Any]]) -> None:
    """Extends each list by what an iterator yields, one after another, in one call. An iterator may read a list that an earlier step extends."""
    list(starmap(list.extend, steps))


def referring(types: Sequence[Any]) -> Iterator[Any]:
    """The instances of exactly these types, found by their references to their types when the iterator is used. The threads of the program stop
    for about 0.1 to 0.2 µs for each object of the collector."""
    return _of_types(types, map(gc.get_referrers, *((found,) for found in types))) if types else iter(())


def _of_types(types: Sequence[Any], lists: Iterable[List[Any]]) -> Iterator[Any]:
    """The objects of these types in lists that are made here. A list can contain the iterators, so what is left of them at the end must not
    refer to it."""
    known = {id(found) for found in types}
    twice = chain.from_iterable(map(repeat, lists, repeat(2)))
    chosen = map(partial(map, known.__contains__), map(partial(map, id), map(partial(map, type), twice)))
    return chain.from_iterable(map(compress, twice, chosen))


class Remembered:
    """What the latest search found, as long as it is true: each instance refers to its type, so a type that is referred to as often as at the
    search has as many instances."""

    def __init__(self) -> None:
        self._references: Optional[List[Any]] = None
        self._counts: Dict[int, int] = {}
        self._empty: Dict[int, int] = {}

    def find(self, lasting: Sequence[Any], short: Sequence[Any]) -> Tuple[List[Any], List[Any]]:
        """The instances of exactly the types whose instances exist for long, such as modules; and, of types that have new instances all the time,
        such as those of tensors, the ones that may have any."""
        counts = {id(found): sys.getrefcount(found) for found in lasting}
        found = self._known(counts)
        if found is None:
            found = self._search(lasting, short, counts)
        return found, [type_ for type_ in short if self._empty.get(id(type_)) != sys.getrefcount(type_)]

    def _known(self, counts: Dict[int, int]) -> Optional[List[Any]]:
        if self._references is None or counts != self._counts:
            return None
        found = [reference() for reference in self._references]
        return None if any(value is None for value in found) else found

    def _search(self, lasting: Sequence[Any], short: Sequence[Any], counts: Dict[int, int]) -> List[Any]:
        self._empty = {id(type_): sys.getrefcount(type_) for type_ in short}
        found: List[Any] = []
        others: List[Any] = []
        together((found, referring(lasting)), (others, referring(short)))
        for type_ in set(map(id, map(type, others))):
            self._empty.pop(type_, None)
        others.clear()
        # Names that are made from the order remain.
        known = {id(value): number for number, value in enumerate(reference() for reference in self._references or ())}
        found.sort(key=lambda value: known.get(id(value), len(known)))
        try:
            self._references, self._counts = [weakref.ref(value) for value in found], counts
        except TypeError:  # A class without weak references.
            self._references = None
        return found
