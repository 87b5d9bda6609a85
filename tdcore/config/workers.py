"""Selection of the workers of a job that capture (include_workers). Pure functions; any thread.

The value is "one" (rank 0), "all" (every rank), or a list of ranks or names: [0, 3], ["worker_3"].
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable

from tdcore.errors import ConfigError
from tdcore.format.layout import valid_worker, worker_name

__all__ = ["expected_workers", "parse_workers"]


def parse_workers(value: object) -> str | tuple[str, ...]:
    """Return "one", "all", or the names of a list, each once. Raises ConfigError for other values."""
    if value in ("one", "all"):
        return str(value)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        names = tuple(dict.fromkeys(_name(item) for item in value))
        if names:
            return names
    raise ConfigError(
        "include_workers must be 'one' or 'all', or a list of ranks such as [0, 3] or of names such as "
        f"['worker_3']; got {value!r}"
    )


def expected_workers(include: object, world_size: int, warn: Callable[[str], None]) -> list[str]:
    """The workers of a job that capture. warn: called with a message if the job lacks some names."""
    everyone = [worker_name(rank) for rank in range(world_size)]
    chosen = parse_workers(include)
    if isinstance(chosen, str):
        return everyone if chosen == "all" else everyone[:1]
    unknown = [name for name in chosen if name not in everyone]
    if unknown:
        warn(f"include_workers names {', '.join(unknown)}, but this job has {world_size} workers")
    return [name for name in everyone if name in chosen]


def _name(item: object) -> str:
    if isinstance(item, str):
        if valid_worker(item):
            return item
    elif not isinstance(item, bool):
        try:
            return worker_name(operator.index(item))  # type: ignore[arg-type]  # whatever it is: the check
        except (TypeError, ValueError):
            pass
    raise ConfigError(f"include_workers needs ranks (0, 1, ...) or names (worker_0, ...), got {item!r}")
