"""The stand-in's `torch.cuda.memory`. `STANDIN_HISTORY=legacy` is a PyTorch before 2.1, which cannot record the state alone."""

import inspect
import os

from .. import _C


def _record_memory_history(enabled="all", *args, **kwargs):
    _implementation(enabled, *args, **kwargs)


def _implementation(enabled="all", context="all", stacks="all", max_entries=1 << 62, device=None, global_record_annotations=False):
    _C._cuda_record_memory_history(enabled, context, stacks, max_entries)


def _legacy(enabled, record_context=True, trace_alloc_max_entries=1, trace_alloc_record_context=False, device=None, record_context_cpp=False):
    raise AssertionError("the client must not call this")


_record_memory_history.__signature__ = inspect.signature(_implementation)
if os.environ.get("STANDIN_HISTORY") == "legacy":
    _record_memory_history = _legacy


def _snapshot(device=None, augment_with_fx_traces=False):
    return _C._cuda_memorySnapshot(None)
