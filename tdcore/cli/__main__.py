"""python -m tdcore.cli."""

from __future__ import annotations

from tdcore.cli import main

if __name__ == "__main__":
    main()
