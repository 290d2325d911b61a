"""What the frames of an allocation tell: the line of the program that made it, and whether a module's forward pass made it; and the stack of
an allocation that fails.

PyTorch's frames are dictionaries with `filename`, `line` and `name`, the innermost first; JAX's are brought into this form. The texts are the program's and may contain
anything. Nothing here raises because of them.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, Dict, List, NamedTuple, Optional

# The longest text of a site, and of a file's name in it, in characters.
LENGTH = 128
FILE_LENGTH = 64
# The maximum number of frames of one allocation that are read.
DEPTH = 256
# The maximum number of frames in the stack of a failed allocation.
STACK = 16

# Frames that a history with C++ frames contains, too.
_BINARY = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".so")
# Code that tools generate: PyTorch's compiler, FX graphs.
_GENERATED = ("<frozen ", "<eval_with_key>", "<__")


class Origin(NamedTuple):
    """Where a block was allocated."""

    site: str
    forward: bool
    """Whether the frames tell that a module's forward pass allocated the block, and do not tell that autograd recorded nothing there."""


class _Frame(NamedTuple):
    text: str
    framework: bool
    forward: bool
    unrecorded: bool


class Frames:
    """Reads the frames of one snapshot, which must outlive this object: frames are remembered by identity, because PyTorch makes one
    dictionary for all allocations that share a frame."""

    def __init__(self) -> None:
        self._folders = _framework_folders()
        self._known: Dict[int, Optional[_Frame]] = {}
        self._of_framework: Dict[str, bool] = {}

    def origin(self, frames: Any) -> Optional[Origin]:
        """The innermost frame outside of framework code, or the innermost frame if there is none. `None` if there are no frames."""
        read = self._all(frames)
        if not read:
            return None
        site = next((frame.text for frame in read if not frame.framework), read[0].text)
        # An outer frame that is not read could be the one of `torch.no_grad`.
        whole = len(frames) <= DEPTH
        return Origin(site, whole and any(frame.forward for frame in read) and not any(frame.unrecorded for frame in read))

    def texts(self, frames: Any) -> List[str]:
        """The frames as texts of the same form as a site, framework code included."""
        return [frame.text for frame in self._all(frames)]

    def _all(self, frames: Any) -> List[_Frame]:
        read: List[_Frame] = []
        for frame in list(frames or ())[:DEPTH]:
            key = id(frame)
            if key not in self._known:
                self._known[key] = self._read(frame)
            found = self._known[key]
            if found is not None:
                read.append(found)
        return read

    def _read(self, frame: Any) -> Optional[_Frame]:
        file, line, name = (frame.get(key) if isinstance(frame, dict) else None for key in ("filename", "line", "name"))
        if not isinstance(file, str) or not isinstance(name, str) or not isinstance(line, int):
            return None
        if file in ("", "??") or line <= 0 or file.endswith(_BINARY):
            return None
        framework = self._of_framework.get(file)
        if framework is None:
            framework = self._of_framework[file] = self._is_framework(file)
        return _Frame(_text(file, line, name), framework, _is_forward(file, name), _is_unrecorded(file, name))

    def _is_framework(self, file: str) -> bool:
        path = file.replace("\\", "/")
        if path.startswith(_GENERATED) or "/site-packages/" in path or "/dist-packages/" in path or "/torchinductor_" in path:
            return True
        return any(path.startswith(folder) for folder in self._folders)


def asking(caller: Optional[FrameType]) -> Dict[str, Any]:
    """The line of the program that asks for memory, as the keys `site` and `frames` of a report; empty if there are no frames. `caller` is
    the innermost frame of the thread that asks."""
    found: List[Dict[str, Any]] = []
    while caller is not None and len(found) < DEPTH:
        found.append({"filename": caller.f_code.co_filename, "line": caller.f_lineno, "name": caller.f_code.co_name})
        caller = caller.f_back
    frames = Frames()
    origin = frames.origin(found)
    return {} if origin is None else {"site": origin.site, "frames": frames.texts(found)[:STACK]}


def printable(text: str, length: int) -> str:
    """At most `length` characters of a text, none of which a terminal obeys or JSON cannot hold."""
    return "".join(character if character.isprintable() else "?" for character in text[:length])


def _text(file: str, line: int, name: str) -> str:
    return printable("%s:%d %s" % (os.path.basename(file)[:FILE_LENGTH], line, name), LENGTH)


def _framework_folders() -> List[str]:
    """The folders of the standard library, of PyTorch and JAX, and of this package."""
    files = [os.__file__, __file__, *(getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "jax"))]
    return [os.path.dirname(os.path.abspath(file)) + "/" for file in files if isinstance(file, str)]


def _is_forward(file: str, name: str) -> bool:
    # Every call of a module passes through `_call_impl`, and no backward pass does, except where it computes a forward pass again. Losses such
    # as `cross_entropy` are often called as functions.
    return (name == "_call_impl" and file.endswith("torch/nn/modules/module.py")) or file.endswith("torch/nn/functional.py")


def _is_unrecorded(file: str, name: str) -> bool:
    """Whether autograd may record nothing in a frame: an optimiser, a backward pass, or a function decorated with `torch.no_grad` or with
    another mode of the same kind. The statement `with torch.no_grad():` leaves no frame."""
    if name == "decorate_context" or "torch/optim/" in file:
        return True
    return file.endswith(("torch/autograd/__init__.py", "torch/autograd/graph.py", "torch/autograd/grad_mode.py"))
