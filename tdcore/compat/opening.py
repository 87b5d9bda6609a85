"""open_smdebug: open a recording of smdebug for reading, as a trial."""

from __future__ import annotations

import os
from typing import Any

from tdcore.compat.place import recorded_run
from tdcore.trial.trial import Trial
from tdcore.trial.trial_factory import create_trial

__all__ = ["open_smdebug"]


def open_smdebug(path: str | os.PathLike[str], name: str | None = None, **options: Any) -> Trial:
    """Open a recording of smdebug 1.0 for reading, as a Trial. Nothing is written to its place.

    Args:
        path: Folder or URL of the recording ("s3://bucket/prefix?options"): it has the folders `collections`,
            `index` and `events`.
        name: Name for the user. None: the last part of the path.
        options: Further arguments of tdcore.create_trial, such as range_steps.

    Raises:
        RunNotFound: There is no recording.
        RunCorrupt: A file of the recording is damaged.
        ConfigError, SinkError: See tdcore.create_trial.
    """
    recorded_run(path).close()
    return create_trial(path, name, **options)
