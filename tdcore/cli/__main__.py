"""Entry point of `python -m tdcore.cli`, the same command as `tdcore`."""

from __future__ import annotations

from tdcore.cli import main

if __name__ == "__main__":
    main()
