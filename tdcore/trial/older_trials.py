"""Trials with smdebug's interface: a create_trial that waits, LocalTrial and S3Trial.

Each trial is a Trial that was opened with compat=True. Threads: see Trial.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from tdcore.errors import UnsupportedFeature
from tdcore.trial import trial_factory
from tdcore.trial.trial import Trial

__all__ = ["LocalTrial", "S3Trial", "create_trial"]

_Range = tuple[int | None, int | None] | None


def create_trial(
    path: str | os.PathLike[str],
    name: str | None = None,
    profiler: bool = False,
    output_dir: str | None = None,
    *,
    range_steps: _Range = None,
    parallel: bool = True,
    check: bool = False,
    index_mode: bool = True,
    cache: bool = False,
    wait: timedelta | None = None,
    **options: Any,
) -> Trial:
    """Open a run for reading, with smdebug's arguments and results.

    Args:
        path: Folder or URL of the run. Spaces around it are removed.
        name: Name for the user. None: the last part of the path.
        profiler: Must be False: tdcore has no profiler.
        output_dir: Folder of profiler reports in smdebug; not used.
        range_steps: Read only these global steps: (first, end) with end exclusive.
        parallel, cache: Not used. In smdebug they control how many files are read.
        check: Not used: tdcore always compares checksums, unless `verify=False`.
        index_mode: Not used: tdcore always reads the index.
        wait: Maximum time to wait for a run that has not begun to write. None: no limit, as in smdebug; the
            place is logged.
        options: Further arguments of tdcore.create_trial.

    Raises:
        UnsupportedFeature: profiler is True.
        RunNotFound, RunCorrupt, ConfigError, SinkError: See tdcore.create_trial.
    """
    if profiler:
        raise UnsupportedFeature("profiler=True is not supported: tdcore does not profile; remove profiler")
    place = path.strip() if isinstance(path, str) else path
    options = {"range_steps": range_steps, "wait": wait, "compat": True, **options}
    return trial_factory.create_trial(place, name, **options)


class LocalTrial(Trial):
    """A trial of a run in a folder. Waits for the run to begin.

    name: for the user. dirname: the run's folder. The other arguments are those of create_trial.
    """

    def __init__(
        self,
        name: str,
        dirname: str | os.PathLike[str],
        range_steps: _Range = None,
        parallel: bool = True,
        check: bool = False,
        index_mode: bool = True,
        cache: bool = False,
        **options: Any,
    ) -> None:
        _open(self, dirname, name, range_steps, options)


class S3Trial(Trial):
    """A trial of a run in a bucket. Waits for the run to begin.

    name: for the user. bucket_name, prefix_name: place of the run. The other arguments are those of
    create_trial.
    """

    def __init__(
        self,
        name: str,
        bucket_name: str,
        prefix_name: str,
        range_steps: _Range = None,
        check: bool = False,
        index_mode: bool = True,
        cache: bool = False,
        **options: Any,
    ) -> None:
        _open(self, f"s3://{bucket_name}/{prefix_name.strip('/')}", name, range_steps, options)


def _open(
    trial: Trial, path: str | os.PathLike[str], name: str, steps: _Range, options: dict[str, Any]
) -> None:
    """Initialize `trial` as the trial of the run at `path`."""
    opened = create_trial(path, name, range_steps=steps, **options)
    Trial.__init__(trial, opened._reader, opened.path, opened.name)
