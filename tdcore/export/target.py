"""Target: the interface of the tools that runs are exported to, and the table of them.

Threads: one thread per target.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from tdcore.export.source import Parameter, Part, Selection, Text

__all__ = ["TARGETS", "Target", "TargetInfo", "check_packages", "open_target"]


class Target(Protocol):
    """Writes one export. Calls: begin, any number of write, end, for each part; then texts."""

    def begin(self, part: Part, parameters: Mapping[str, Parameter]) -> None:
        """Start a worker of an attempt."""
        ...

    def write(self, batch: pa.Table) -> int:
        """Write the statistics of the part's next steps (Part.batches).

        Returns the number of values; for tables, the number of rows with statistics.
        """
        ...

    def end(self, texts: Sequence[Text]) -> None:
        """End the part. texts: its findings and notes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetInfo:
    """One target.

    Attributes:
        module: Module with the function `open`.
        packages: Packages that the target imports.
        extra: Extra of tdcore that installs the packages; "" if tdcore needs them anyway.
        is_file: Whether the output is a file and not a folder.
        suffix: Suffix of the default output.
        variables: Environment variables during an export, unless the user has set them.
    """

    module: str
    packages: tuple[str, ...] = ()
    extra: str = ""
    is_file: bool = False
    suffix: str
    variables: tuple[tuple[str, str], ...] = ()


TARGETS = {
    "tensorboard": TargetInfo(
        module="tensorboard", packages=("tensorboard",), extra="tensorboard", suffix=".tensorboard"
    ),
    "wandb": TargetInfo(
        module="wandb",
        packages=("wandb",),
        extra="wandb",
        suffix=".wandb",
        variables=(("WANDB_ERROR_REPORTING", "false"),),
    ),
    "mlflow": TargetInfo(
        module="mlflow",
        packages=("mlflow", "sqlalchemy", "alembic"),
        extra="mlflow",
        suffix=".mlflow",
        variables=(("MLFLOW_DISABLE_TELEMETRY", "true"),),  # MLflow reads it when it is imported
    ),
    "trackio": TargetInfo(module="trackio", packages=("trackio",), extra="trackio", suffix=".trackio"),
    "csv": TargetInfo(module="tables", suffix=".csv"),
    "parquet": TargetInfo(module="tables", suffix=".parquet"),
    "duckdb": TargetInfo(
        module="duckdb", packages=("duckdb",), extra="duckdb", is_file=True, suffix=".duckdb"
    ),
}


def check_packages(name: str) -> None:
    """Raise ConfigError if a package that the target imports is missing."""
    info = TARGETS[name]
    missing = [package for package in info.packages if find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"the export to {name} needs {' and '.join(missing)}; "
            f"install it with: pip install 'tdcore-capture[{info.extra}]'"
        )


@contextmanager
def open_target(name: str, place: Path, selection: Selection) -> Iterator[Target]:
    """The target of this name, which writes to a folder or file.

    Raises:
        ConfigError: A package of the tool is missing.
    """
    check_packages(name)
    info = TARGETS[name]
    with _variables(info.variables):
        opener: Callable[..., AbstractContextManager[Target]] = import_module(
            f"tdcore.export.{info.module}"
        ).open_target
        with opener(place, selection, name) as target:
            yield target


@contextmanager
def _variables(variables: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Set environment variables that are not set, within the block."""
    added = {name: value for name, value in variables if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
