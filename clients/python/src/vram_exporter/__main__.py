"""`python -m vram_exporter` is `vram-run`, for environments whose scripts are not in PATH."""

from __future__ import annotations

from ._run import main

if __name__ == "__main__":
    main()
