"""Reads a profile in the format of pprof (`profile.proto`), as far as it tells where memory was allocated.

Invariants: nothing here raises because of what a profile contains, nothing in it is followed more than three messages deep, and its size and
the number of its parts are limited before they are read. A profile that breaks a rule of the format is not read at all.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

# The longest profile that is read, in bytes, and the maximum number of its samples, locations, functions and texts together.
SIZE = 4 << 20
PARTS = 1 << 17
# The maximum number of frames of one sample; further frames are outer ones.
DEPTH = 256

# The fields of `Profile`.
_VALUE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _TEXT = 1, 2, 4, 5, 6
_PARTS = (_VALUE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _TEXT)


class Sample(NamedTuple):
    """What was allocated in one place."""

    value: int
    labels: Dict[str, str]
    """The labels that are texts."""
    frames: List[Dict[str, Any]]
    """`filename`, `line` and `name` of each frame, the innermost first. Samples share these dictionaries."""


def samples(profile: bytes, value: Tuple[str, str]) -> Optional[List[Sample]]:
    """The samples with their values of one type and unit, such as `("space", "bytes")`. `None` if the profile is malformed, too large, or
    has no such values."""
    try:
        return _Profile(profile).samples(value) if len(profile) <= SIZE else None
    except (ValueError, IndexError, KeyError, TypeError):
        return None


class _Profile:
    """May raise ValueError, IndexError, KeyError or TypeError, all of which mean that the profile is malformed or too large."""

    def __init__(self, profile: bytes) -> None:
        self._parts: Dict[int, List[bytes]] = {number: [] for number in _PARTS}
        count = 0
        for number, value in _fields(profile):
            if number in self._parts:
                count += 1
                if count > PARTS:
                    raise ValueError("too many parts")
                self._parts[number].append(_bytes(value))
        self._texts: Dict[int, str] = {}
        self._functions = {_whole(fields, 1): fields for fields in map(_single, self._parts[_FUNCTION])}
        self._locations: Dict[int, bytes] = {}
        for location in self._parts[_LOCATION]:
            self._locations[_whole(_single(location), 1)] = location
        self._frames: Dict[int, List[Dict[str, Any]]] = {}

    def samples(self, value: Tuple[str, str]) -> List[Sample]:
        types = [tuple(self._text(_whole(fields, number)) for number in (1, 2)) for fields in map(_single, self._parts[_VALUE_TYPE])]
        index = types.index(value)
        return [self._sample(sample, index, len(types)) for sample in self._parts[_SAMPLE]]

    def _sample(self, sample: bytes, index: int, count: int) -> Sample:
        locations: List[int] = []
        values: List[int] = []
        labels: Dict[str, str] = {}
        for number, value in _fields(sample):
            if number == 1:
                locations += _numbers(value, DEPTH)
            elif number == 2:
                values += _numbers(value, count + 1)
            elif number == 3:
                label = _single(_bytes(value))
                if _whole(label, 2):
                    labels[self._text(_whole(label, 1))] = self._text(_whole(label, 2))
        if len(values) != count or _signed(values[index]) < 0:
            raise ValueError("a value without a type, or a negative one")
        frames: List[Dict[str, Any]] = []
        for location in locations:
            if len(frames) >= DEPTH:
                break
            frames += self._at(location)
        return Sample(values[index], labels, frames[:DEPTH])

    def _at(self, location: int) -> List[Dict[str, Any]]:
        """The frames at a location: more than one if functions were inlined there."""
        if location not in self._frames:
            lines = [_single(_bytes(value)) for number, value in _fields(self._locations[location]) if number == 4]
            self._frames[location] = [self._frame(line) for line in lines[:DEPTH]]
        return self._frames[location]

    def _frame(self, line: Dict[int, Union[int, bytes]]) -> Dict[str, Any]:
        function = self._functions[_whole(line, 1)]
        return {"filename": self._text(_whole(function, 4)), "line": _signed(_whole(line, 2)), "name": self._text(_whole(function, 2))}

    def _text(self, index: int) -> str:
        text = self._texts.get(index)
        if text is None:
            text = self._texts[index] = self._parts[_TEXT][index].decode("utf-8", "replace")
        return text


def _fields(message: bytes) -> Iterator[Tuple[int, Union[int, bytes]]]:
    """The number and the value of each field of a message."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("no field")
        value, at = _varint(message, at) if kind in (0, 2) else (0, at)
        if kind == 0:
            yield number, value
            continue
        # Kinds 1 and 5 have eight and four bytes, and do not occur in this format. Kinds 3 and 4 are groups.
        if kind != 2 or value > end - at:
            raise ValueError("a field of a wrong kind or length")
        yield number, message[at : at + value]
        at += value


def _varint(message: bytes, at: int) -> Tuple[int, int]:
    """A number of at most 64 bits, and where it ends."""
    value = message[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 64, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
    raise ValueError("a number of more than 64 bits")


def _single(message: bytes) -> Dict[int, Union[int, bytes]]:
    """The fields of a message, of which none matters that occurs more than once."""
    return dict(_fields(message))


def _whole(fields: Dict[int, Union[int, bytes]], number: int) -> int:
    """A field that is a number; a field that is absent is 0."""
    value = fields.get(number, 0)
    if not isinstance(value, int):
        raise ValueError("not a number")
    return value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _bytes(value: Union[int, bytes]) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("not a message")
    return value


def _numbers(value: Union[int, bytes], most: int) -> List[int]:
    """At most the first `most` numbers of a repeated field: one number, or several that are packed."""
    if isinstance(value, int):
        return [value]
    numbers: List[int] = []
    at = 0
    while at < len(value) and len(numbers) < most:
        number, at = _varint(value, at)
        numbers.append(number)
    return numbers
