"""The tree of the program's modules, and the rows that say how much memory belongs to which of them.

Invariants: no code of the program runs: the children, parameters and buffers of a module are read from its attributes. A tree keeps no object
of the program, and is bounded. What belongs to several modules counts for the first one in the order of PyTorch's `named_modules`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ._connection import fits
from ._frames import printable

# The maximum number of modules; there is no tree of more.
MODULES = 20000
# The number of rows in a message, and the longest name of one in characters.
ROWS = 10
LENGTH = 128
# A module with too many parts is replaced by the largest ones only if they hold this share of it.
SHARE = 0.9
# The names that wrappers give to the wrapped module: DistributedDataParallel, `torch.compile`, FSDP, activation checkpointing.
_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# The classes of these wrappers, whose names tell nothing about the program.
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "OptimizedModule", "FullyShardedDataParallel", "CheckpointWrapper")


class Tree:
    """The modules as numbered nodes, each after its parent."""

    def __init__(self) -> None:
        self.pointers: Dict[int, int] = {}
        """The pointers of storages, each with the first node to which it belongs."""
        self.kinds: List[str] = []
        """The name of each node's class."""
        self.roots: List[int] = []
        self.children: List[Dict[str, int]] = []

    def add(self, pointer: int, node: int) -> None:
        self.pointers[pointer] = min(node, self.pointers.get(pointer, node))

    def message(self, framework: str, device: str, own: Dict[int, int]) -> Optional[Dict[str, Any]]:
        """The message about a device, which fits into one line; `None` if no module has memory there. `own` has the bytes that belong to each
        node itself."""
        parts, other = _Rows(self, own).choose()
        if not parts:
            return None
        rows = [{"module": _name(part.path), "bytes": part.size} for part in sorted(parts, key=lambda part: (-part.size, part.path))]
        message: Dict[str, Any] = {"type": "modules", "framework": framework, "device": device, "modules": rows, "other_bytes": other}
        while rows and not fits(message):
            message["other_bytes"] += rows.pop()["bytes"]
        return message

    def node(self, parent: Optional[int], name: str, kind: str) -> int:
        """The node of a module. One that is wrapped is the same as its wrapper."""
        if parent is not None:
            found = parent if name in _WRAPPED else self.children[parent].get(name)
            if found is not None:
                if self.kinds[found] in _WRAPPERS:
                    self.kinds[found] = kind
                return found
        node = len(self.kinds)
        self.kinds.append(kind)
        self.children.append({})
        if parent is None:
            self.roots.append(node)
        else:
            self.children[parent][name] = node
        return node


def tree(modules: List[Any], attributes: Callable[[Any], Dict[str, Any]], late: Callable[[], bool]) -> Optional[Tuple[Tree, List[Tuple[Any, int]]]]:
    """The tree of these modules, and their parameters and buffers, each with the node to which it belongs. `None` if there are too many modules, or
    if it is `late`. May raise if the program changes a module at the same time."""
    inner = {id(child) for module in modules for _, child in _entries(attributes(module), "_modules") if child is not module}
    made, seen = Tree(), set()
    tensors: Dict[int, Tuple[Any, int]] = {}
    # PyTorch's compiler keeps copies of parts of a model, to which the same parameters belong.
    roots = sorted((module for module in modules if id(module) not in inner), key=lambda module: (_is_generated(module), _kind(module)))
    left: List[Tuple[Any, str, Optional[int]]] = [(module, "", None) for module in reversed(roots)]
    while left:
        module, name, parent = left.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if len(seen) > MODULES or late():
            return None
        node, found = made.node(parent, name, _kind(module)), attributes(module)
        for key in ("_parameters", "_buffers"):
            for _, tensor in _entries(found, key):
                tensors.setdefault(id(tensor), (tensor, node))
        left += [(child, key, node) for key, child in reversed(_entries(found, "_modules"))]
    return made, list(tensors.values())


def _entries(attributes: Dict[str, Any], key: str) -> List[Tuple[str, Any]]:
    found: Any = attributes.get(key)
    if not issubclass(type(found), dict):
        return []
    return [(name if type(name) is str else "?", value) for name, value in list(dict.items(found)) if value is not None]


def _kind(module: Any) -> str:
    # Without the attributes of a metaclass, which may be code of the program.
    return str(type.__dict__["__name__"].__get__(type(module)))


def _is_generated(module: Any) -> bool:
    name = type.__dict__["__module__"].__get__(type(module))
    return type(name) is str and name.startswith("torch.fx")


class _Part(NamedTuple):
    """Modules that are one row: one, or several that have the same place in modules with different numbers."""

    path: str
    """The path of the row; empty for the only root."""
    name: str
    """The last part of the path."""
    nodes: List[int]
    size: int
    whole: bool = True
    """Whether the children of the nodes belong to it."""


class _Rows:
    """Chooses what the rows are."""

    def __init__(self, made: Tree, own: Dict[int, int]) -> None:
        self._tree, self._own = made, own
        self._sizes = [own.get(node, 0) for node in range(len(made.kinds))]
        for node in reversed(range(len(made.kinds))):
            self._sizes[node] += sum(self._sizes[child] for child in made.children[node].values())

    def choose(self) -> Tuple[List[_Part], int]:
        """The rows, and the bytes that are in none of them. The largest row that can be split is split until there is none."""
        rows = sorted(self._roots(), key=lambda part: -part.size)
        other = sum(part.size for part in rows[ROWS:])
        del rows[ROWS:]
        final: List[_Part] = []
        while rows:
            largest = max(rows, key=lambda part: part.size)
            rows.remove(largest)
            room = ROWS - len(rows) - len(final)
            parts = self._split(largest, room)
            if parts is None:
                final.append(largest if largest.path else largest._replace(path=largest.name))
            else:
                rows += parts
                other += largest.size - sum(part.size for part in parts)
        return final, other

    def _roots(self) -> List[_Part]:
        """The roots that have memory. The only one needs no name in the paths."""
        roots = [node for node in self._tree.roots if self._sizes[node]]
        if len(roots) == 1:
            return [_Part("", self._tree.kinds[roots[0]], roots, self._sizes[roots[0]])]
        counts: Dict[str, int] = {}
        parts = []
        for node in roots:
            name = self._tree.kinds[node]
            counts[name] = counts.get(name, 0) + 1
            if counts[name] > 1:
                name += "#%d" % counts[name]
            parts.append(_Part(name, name, [node], self._sizes[node]))
        return parts

    def _split(self, row: _Part, room: int) -> Optional[List[_Part]]:
        """At most `room` parts of a row. `None` if it has no children with memory, or too many parts."""
        children = self._children(row) if row.whole else []
        if not children:
            return None
        size = sum(self._own.get(node, 0) for node in row.nodes)
        own = [_Part((row.path or row.name) + " (own)", "", row.nodes, size, whole=False)] if size else []
        parts = _runs(row, children, self._tree.kinds) + own
        if len(parts) > room:
            parts = _numbered(row, children, room - len(own)) + own
        if len(parts) > room:
            parts = sorted(parts, key=lambda part: -part.size)[:room]
            if sum(part.size for part in parts) < SHARE * row.size:
                return None
        return parts

    def _children(self, row: _Part) -> List[_Part]:
        """The children with memory; those of several nodes that have the same name are one part."""
        nodes: Dict[str, List[int]] = {}
        for node in row.nodes:
            for name, child in self._tree.children[node].items():
                if self._sizes[child]:
                    nodes.setdefault(name, []).append(child)
        return [_Part(_joined(row, name), name, found, sum(self._sizes[node] for node in found)) for name, found in nodes.items()]


def _runs(row: _Part, parts: List[_Part], kinds: List[str]) -> List[_Part]:
    """The parts, with neighbouring numbers of the same class and size as one: `blocks.0-11`."""
    made: List[_Part] = []
    first, last = -1, -1
    for part in parts:
        number, before = _number(part.name), made[-1] if made else None
        alike = before is not None and number is not None and first >= 0 and number == last + 1 and kinds[part.nodes[0]] == kinds[before.nodes[0]]
        if before is not None and number is not None and alike and part.size * (last - first + 1) == before.size:
            last = number
            made[-1] = _together(row, "%d-%d" % (first, last), (before, part))
        else:
            first = last = -1 if number is None else number
            made.append(part)
    return made


def _numbered(row: _Part, parts: List[_Part], room: int) -> List[_Part]:
    """The parts, with all numbers as one: `blocks.*`. Those that hold more than twice the median stay apart, if there is room."""
    numbers = sorted((part for part in parts if _number(part.name) is not None), key=lambda part: -part.size)
    if len(numbers) < 2:
        return parts
    others = [part for part in parts if _number(part.name) is None]
    limit = 2 * numbers[(len(numbers) - 1) // 2].size
    apart = [part for part in numbers if part.size > limit][: max(0, room - len(others) - 1)]
    return others + apart + [_together(row, "*", numbers[len(apart) :])]


def _together(row: _Part, name: str, parts: Iterable[_Part]) -> _Part:
    found = list(parts)
    return _Part(_joined(row, name), name, [node for part in found for node in part.nodes], sum(part.size for part in found))


def _number(name: str) -> Optional[int]:
    return int(name) if len(name) < 10 and name.isascii() and name.isdigit() else None


def _joined(row: _Part, name: str) -> str:
    return row.path + "." + name if row.path else name


def _name(path: str) -> str:
    """The path as the name of a row. Of a long one, the end tells more."""
    return printable(path if len(path) <= LENGTH else "\u2026" + path[1 - LENGTH :], LENGTH)
