"""`python -m tdcore.run`, the form of the command `tdcore run` for torchrun (launch/run.py)."""

from __future__ import annotations

from tdcore.launch.run import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
