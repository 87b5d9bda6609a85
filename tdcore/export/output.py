"""The folder or file of an export: it is never overwritten by accident, and a failed export leaves nothing.

A folder of an export contains the file MARKER. With `force`, only such a folder, an empty folder or a file is
replaced. The earlier export is removed when the new one is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tdcore.errors import ConfigError, TdcoreError

__all__ = ["MARKER", "output_place"]

MARKER = ".tdcore-export.json"


@contextmanager
def output_place(path: Path, *, is_file: bool, force: bool, about: dict[str, Any]) -> Iterator[Path]:
    """The place to write to. It is removed after an exception.

    Args:
        path: The folder or file of the export.
        is_file: Whether it is a file, which then appears when it is complete.
        force: Whether an earlier export is replaced.
        about: Content of MARKER.

    Raises:
        ConfigError: The place exists, or cannot be written.
    """
    _check(path, is_file=is_file, force=force)
    whole = Path(os.path.abspath(path))
    earlier = whole.with_name(f".{whole.name}.{os.getpid()}.old")
    written = whole.with_name(f".{whole.name}.{os.getpid()}.tmp") if is_file else path
    with _errors_of(path):
        if not is_file and path.is_dir() and os.listdir(path):
            path.rename(earlier)
    try:
        with _errors_of(path):
            if is_file:
                path.parent.mkdir(parents=True, exist_ok=True)
            else:
                path.mkdir(parents=True, exist_ok=True)
                (path / MARKER).write_text(json.dumps(about))
            yield written
            if is_file:
                written.replace(path)
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(path) if not is_file else written.unlink(missing_ok=True)
        with suppress(OSError):
            earlier.rename(path)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Convert errors of the disk to ConfigError. Errors of tdcore, such as SinkError, are not changed."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TdcoreError) or not error.strerror:
            raise
        raise ConfigError(f"--out is {str(path)!r}, which cannot be written: {error.strerror}") from error


def _check(path: Path, *, is_file: bool, force: bool) -> None:
    """Raise ConfigError if the place must not be replaced."""
    if not os.path.lexists(path):
        return
    if path.is_dir() and not path.is_symlink():
        content = os.listdir(path)
        if not content and not is_file:
            return
        if MARKER not in content:
            raise ConfigError(
                f"--out is {str(path)!r}, a folder that is not an export of tdcore; give another place"
            )
    if path.is_symlink() or path.is_dir() == is_file:
        raise ConfigError(
            f"--out is {str(path)!r}, which is not a {'file' if is_file else 'folder'}; give another place"
        )
    if not force:
        raise ConfigError(
            f"--out is {str(path)!r}, which exists; give another place, or --force to replace it"
        )
