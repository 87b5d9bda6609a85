"""Entry point of `python -m tdcore.run`, the same command as `tdcore run`, for torchrun (launch/run.py)."""

from __future__ import annotations

from tdcore.launch.run import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
