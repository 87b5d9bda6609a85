"""open_smdebug: open a recording of smdebug for reading, as a trial."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

from tdcore.compat.place import recorded_run
from tdcore.errors import ConfigError
from tdcore.sinks import place_text, shown_place
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
        ConfigError: The place also contains a run.
        SinkError: See tdcore.create_trial.
    """
    with closing(recorded_run(path)) as recorded:
        if recorded.has_run():
            raise ConfigError(
                f"{shown_place(place_text(path))} contains a recording of smdebug and a run of tdcore, which "
                "create_trial opens; read the recording with `tdcore convert OLD NEW`"
            )
    return create_trial(path, name, **options)
