"""`python -m tdcore.run`, as torchrun starts it: the command `tdcore run` (launch/run.py)."""

from __future__ import annotations

from tdcore.launch.run import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
