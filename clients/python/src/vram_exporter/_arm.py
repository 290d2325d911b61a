"""Starts the client when this module is imported: by the .pth file, or by the `sitecustomize` of `vram-run`. Never raises."""

from __future__ import annotations

try:
    from ._client import start

    start()
except Exception:  # A program must start even if its monitoring cannot.
    pass
