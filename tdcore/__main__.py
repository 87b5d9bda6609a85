"""Entry point of `python -m tdcore`, the same command as `tdcore`."""

from __future__ import annotations

from tdcore.cli import main

if __name__ == "__main__":
    main()
