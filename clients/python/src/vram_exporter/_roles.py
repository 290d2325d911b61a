"""Which memory the program's tensors occupy, and in which role: the pointers that a look compares with the allocated blocks.

PyTorch has public hooks for the registration of modules and parameters, which do not run in a step. They are not used, because they miss
what existed before the client and what is copied or unpickled, and because optimisers and tensors outside of modules have none. Hooks of
optimisers run in each step. So a search of the garbage collector's objects finds everything, and costs nothing between two looks.

Invariants: no code of the program runs, except finalisers of objects that end during the pass: tensors are read with the functions of the base
class while PyTorch's overrides are off. The pass drops each tensor when it has read it, and its length is bounded.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import AbstractSet, Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from . import _gradients, _modules, _objects
from ._objects import named

# In order of precedence.
ROLES = ("parameters", "gradients", "optimizer_state", "kv_cache", "other")
_PARAMETER, _GRADIENT, _STATE, _CACHE, OTHER = range(len(ROLES))
# The kinds of objects that the pass collects.
_TENSOR, _PARAMETER_TENSOR, _OPTIMIZER, _KV, _MODULE, _DDP = range(6)
_TENSORS = (_TENSOR, _PARAMETER_TENSOR)
# `gc.freeze` hides all objects that the collector knows. CPython itself hides a few hundred when it starts (375 in a process with PyTorch 2.11).
# PyTorch's import makes more than this many, so a lower number was hidden before that, when there were no tensors.
_FROZEN = 10000
# Before this version, a tensor that only autograd held could end although the pass referred to its Python object, and PyTorch then warned the
# program (PyTorch's pull request 167564). So only the tensors of modules and optimisers are read there.
_KEEPS_TENSORS = (2, 11)
# Where PyTorch defines modules that contain others.
_MODELS = ("torch.nn.modules.container", "torch.nn.modules.transformer", "torch.nn.parallel", "torch.distributed", "torch._dynamo")
# How long a pass waits for the main thread to read gradients, in seconds.
_PATIENCE = 0.5
# How deep the values of an optimiser's state are searched.
_NESTED = 4


class Held(NamedTuple):
    """What Python code holds."""

    ranks: Dict[int, int]
    """The pointers of tensors, each with the index of its role in `ROLES`."""
    looked_for: Tuple[str, ...]
    """The roles that could be determined, even if nothing has them."""
    complete: bool
    """Whether no tensor on a GPU was missed. Otherwise memory without a pointer may be that of a tensor."""
    graph: bool
    """Whether a tensor is the result of operations that autograd recorded: only then can autograd hold memory."""
    results: AbstractSet[int] = frozenset()
    """The pointers of such results. PyTorch keeps the Python object of a tensor that autograd holds, so the collector lists it,
    whether the program holds it or not."""
    gradients: bool = True
    """Whether gradients were looked for. Otherwise a tensor that seems to be another one can be a gradient."""
    modules: Optional[_modules.Tree] = None
    """The modules to which parameters, gradients, optimiser state and buffers belong; `None` if a part of them may have been missed."""


def gather(seconds: float, remembered: Optional[_objects.Remembered] = None, alone: bool = False) -> Optional[Held]:
    """One pass, which stops looking after `seconds` of this thread's processor time. `remembered` makes the next pass shorter. `alone` says that no
    other thread can be changing a gradient. `None` if this PyTorch, or a CPython without the GIL, cannot be asked. May raise whatever PyTorch
    raises."""
    torch = sys.modules.get("torch")
    unmodified = getattr(sys.modules.get("torch._C"), "DisableTorchFunctionSubclass", None)
    if torch is None or unmodified is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    with unmodified():
        return _Pass(torch, time.thread_time() + seconds).run(remembered or _objects.Remembered(), alone)


class _Pass:
    def __init__(self, torch: Any, deadline: float) -> None:
        self._deadline = deadline
        base = torch.Tensor
        # The base class's functions: a subclass may have replaced them with code of its own.
        self._is_cuda, self._is_leaf = base.is_cuda.__get__, base.is_leaf.__get__
        self._requires_grad, self._grad = base.requires_grad.__get__, base.grad.__get__
        # The storage would get a Python object, for which a thread that frees it later needs the GIL.
        self._pointer = base.data_ptr
        self._ranks: Dict[int, int] = {}
        self._results: Set[int] = set()
        self._gradients = True
        # Whether a tensor may have been missed in what was searched, and whether all tensors were searched.
        self._missed = gc.get_freeze_count() >= _FROZEN
        self._all = _version(torch) >= _KEEPS_TENSORS
        self._graph = False
        # The types are kept, so that the identities remain theirs.
        self._types = list(_types(torch))
        self._kinds = {id(found): kind for found, kind in self._types}
        self._tree: Optional[_modules.Tree] = None
        # The node of each parameter and buffer, by the identity of the object.
        self._owners: Dict[int, int] = {}
        self._has_cache = any(kind == _KV for _, kind in self._types)

    def run(self, remembered: _objects.Remembered, alone: bool) -> Held:
        lasting = [found for found, kind in self._types if kind not in _TENSORS]
        # Where references do not keep tensors, none is searched.
        others, types = remembered.find(lasting, [found for found, kind in self._types if kind in _TENSORS] if self._all else [])
        # With this option, the C++ code of DistributedDataParallel replaces gradients without the GIL, so reading one is not safe.
        wrappers = [_attributes(value) for value in others if self._kind(value) == _DDP]
        self._gradients = not self._missed and all(wrapper.get("gradient_as_bucket_view") is False for wrapper in wrappers)
        tensors = self._find_modules([value for value in others if self._kind(value) in (_MODULE, _DDP)])
        for value in others:
            if self._kind(value) == _OPTIMIZER:
                self._optimizer(_attributes(value), tensors)
            elif self._kind(value) == _KV:
                self._cache(_attributes(value))
        if self._all:
            tensors.clear()
        leaves: List[Any] = []
        _objects.together((tensors, _objects.referring(types)), (leaves, filter(self._is_leaf, filter(self._requires_grad, filter(self._is_cuda, tensors)))))
        # The youngest come first, and are dropped one after another: they are the ones that the program frees first.
        tensors.reverse()
        while tensors:
            tensor = tensors.pop()
            self._visit(tensor, self._kind(tensor) == _PARAMETER_TENSOR)
            del tensor
            if self._late():
                self._missed = True
                break
        self._read_gradients(leaves, alone)
        complete = self._all and not self._missed
        modules = None if self._missed else self._tree
        return Held(self._ranks, tuple(self._looked_for(complete)), complete, self._graph, self._results, self._gradients, modules)

    def _read_gradients(self, leaves: List[Any], alone: bool) -> None:
        gradients = None
        if self._gradients:
            gradients = list(map(self._grad, leaves)) if alone else _gradients.of(leaves, self._grad, _PATIENCE)
        self._gradients = gradients is not None
        for leaf, gradient in zip(leaves, gradients or ()):
            if gradient is not None:
                self._add(gradient, _GRADIENT, owner=self._owners.get(id(leaf)))

    def _kind(self, value: Any) -> Optional[int]:
        return self._kinds.get(id(type(value)))

    def _looked_for(self, complete: bool) -> Iterator[str]:
        if not complete:
            return
        yield from (ROLES[_PARAMETER], ROLES[_STATE])
        if self._gradients:
            yield from (ROLES[_GRADIENT], ROLES[OTHER])
        if self._has_cache:
            yield ROLES[_CACHE]

    def _late(self) -> bool:
        return time.thread_time() > self._deadline

    def _find_modules(self, modules: List[Any]) -> List[Any]:
        """The parameters and buffers of modules."""
        try:
            found = _modules.tree(modules, _attributes, self._late) if modules else None
        except Exception:  # The program may change a module at the same time.
            found = None
        if found is None:
            return []
        self._tree, tensors = found
        self._owners = {id(tensor): node for tensor, node in tensors}
        return [tensor for tensor, _ in tensors if self._kind(tensor) in _TENSORS]

    def _visit(self, tensor: Any, is_parameter: bool) -> None:
        """A tensor of the program, or one that autograd holds."""
        result, owner = False, self._owners.get(id(tensor))
        is_parameter = is_parameter or _attributes(tensor).get("_is_param") is True
        try:
            if not self._is_cuda(tensor):
                return
            if self._requires_grad(tensor) and not self._is_leaf(tensor):
                self._graph = result = True
        except Exception:
            self._missed = True
            return
        self._add(tensor, _PARAMETER if is_parameter else OTHER, result, owner)

    def _add(self, tensor: Any, rank: int, result: bool = False, owner: Optional[int] = None) -> None:
        """Notes the pointer of a tensor, which may belong to a module."""
        inner = _local(tensor)
        if inner is not None:
            tensor = inner
        try:
            if not self._is_cuda(tensor):
                return
            pointer = self._pointer(tensor)
        except Exception:  # A sparse tensor, for example, has no memory of its own.
            self._missed = True
            return
        if pointer:
            self._ranks[pointer] = min(rank, self._ranks.get(pointer, OTHER))
            if result:
                self._results.add(pointer)
            if owner is not None and self._tree is not None:
                self._tree.add(pointer, owner)

    def _optimizer(self, attributes: Dict[str, Any], tensors: List[Any]) -> None:
        """Notes what an optimiser holds, and adds its parameters to `tensors`."""
        state: Any = attributes.get("state")
        for parameter, value in list(dict.items(state)) if issubclass(type(state), dict) else ():
            self._search(value, _STATE, _NESTED - 1, self._owners.get(id(parameter)))
        groups = attributes.get("param_groups")
        if issubclass(type(groups), list):
            for group in list(groups or ()):
                if issubclass(type(group), dict):
                    parameters = dict.get(group, "params")
                    self._search(parameters, _PARAMETER, 1)
                    if issubclass(type(parameters), list):
                        tensors += [value for value in list(parameters or ()) if self._kind(value) in _TENSORS]

    def _cache(self, attributes: Dict[str, Any]) -> None:
        for name in ("key_cache", "value_cache"):
            self._search(attributes.get(name), _CACHE, 1)
        layers = attributes.get("layers")
        if issubclass(type(layers), (list, tuple)):
            for layer in list(layers or ()):
                for name in ("keys", "values"):
                    self._search(_attributes(layer).get(name), _CACHE, 1)

    def _search(self, value: Any, rank: int, depth: int, owner: Optional[int] = None) -> None:
        """Notes the tensors in a value, or in the values of a container."""
        if self._kind(value) in _TENSORS:
            self._add(value, rank, owner=owner)
        elif depth and issubclass(type(value), dict):
            for part in list(dict.values(value)):
                self._search(part, rank, depth - 1, owner)
        elif depth and issubclass(type(value), (list, tuple)):
            for part in list(value):
                self._search(part, rank, depth - 1, owner)


def _version(torch: Any) -> Tuple[int, ...]:
    """The first two numbers of PyTorch's version; empty if they are not numbers."""
    try:
        return tuple(int(part) for part in str(torch.__dict__.get("__version__")).split(".")[:2])
    except ValueError:
        return ()


def _types(torch: Any) -> Iterator[Tuple[Any, int]]:
    """Every type to collect, with its kind; nothing is imported to find it."""
    tensors = [(type_, _TENSOR) for type_ in _with_subclasses(torch.Tensor)]
    parameters = {id(type_) for type_ in _with_subclasses(named("torch.nn.parameter", "Parameter"))}
    for type_, kind in tensors:
        # Tensors without memory, with which PyTorch's compiler computes shapes.
        if not _module(type_).startswith("torch._subclasses"):
            yield type_, _PARAMETER_TENSOR if id(type_) in parameters else kind
    for type_ in _with_subclasses(named("torch.nn.modules.module", "Module")):
        # A model is of a type of the program, or has layers of PyTorch in a container. Each type more makes the search longer.
        module = _module(type_)
        if not module.startswith("torch.") or module.startswith(_MODELS):
            yield type_, _MODULE
    for module, name, kind in (
        ("torch.optim.optimizer", "Optimizer", _OPTIMIZER),
        ("torch.nn.parallel.distributed", "DistributedDataParallel", _DDP),
    ):
        for type_ in _with_subclasses(named(module, name)):
            yield type_, kind
    # An attribute of the package `transformers` itself might be imported when it is read.
    if "transformers" in sys.modules:
        for type_ in _with_subclasses(named("transformers.cache_utils", "Cache")):
            yield type_, _KV


def _module(type_: Any) -> str:
    return str(type.__getattribute__(type_, "__module__"))


def _with_subclasses(base: Any) -> Iterator[Any]:
    seen, left = set(), [base] if isinstance(base, type) else []
    while left:
        type_ = left.pop()
        if id(type_) not in seen:
            seen.add(id(type_))
            yield type_
            left += type.__subclasses__(type_)


def _attributes(value: Any) -> Dict[str, Any]:
    """The attributes of an object itself, found without code of its class."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _local(tensor: Any) -> Any:
    """The tensor of this process in a tensor that is distributed over several, or `None`."""
    if not _module(type(tensor)).startswith("torch.distributed"):
        return None
    try:
        return object.__getattribute__(tensor, "_local_tensor")
    except AttributeError:
        return None
