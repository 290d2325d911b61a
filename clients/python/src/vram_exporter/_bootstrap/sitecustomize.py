# Starts the client in each Python process under `vram-run`, then runs the `sitecustomize` that would have run without this one.
#
# Invariant: what the program sees afterwards (`sys.path`, `sys.modules["sitecustomize"]`, an exception of the other `sitecustomize`) is
# what it would have seen without `vram-run`. Any version of Python may read this file, even Python 2, so only old syntax is used.
import os
import sys


def _is_here(entry, here=os.path.dirname(os.path.abspath(__file__))):
    return os.path.abspath(entry or os.curdir) == here


def _start(package=os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
    if sys.version_info < (3, 9) or os.environ.get("VRAM_EXPORTER_ARM") != "1":
        return
    try:
        if "vram_exporter" not in sys.modules:
            # The package may belong to another environment, whose folder must not become importable as a whole.
            from importlib.util import module_from_spec, spec_from_file_location

            spec = spec_from_file_location("vram_exporter", os.path.join(package, "__init__.py"), submodule_search_locations=[package])
            module = module_from_spec(spec)
            sys.modules["vram_exporter"] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                sys.modules.pop("vram_exporter", None)
                raise
        __import__("vram_exporter._arm")
    except Exception:  # A program must start even if its monitoring cannot.
        pass


_start()
sys.path[:] = [entry for entry in sys.path if not _is_here(entry)]
_this = sys.modules.pop("sitecustomize", None)
try:
    __import__("sitecustomize")
except ImportError as _error:
    if getattr(_error, "name", "sitecustomize") != "sitecustomize":
        raise
    if _this is not None:
        sys.modules["sitecustomize"] = _this
