"""Start of the process that exports a run to TensorBoard while it is written (tdcore.export.follow).

Threads: the thread that creates the session.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import time
from importlib.util import find_spec

from tdcore.errors import ConfigError
from tdcore.session.spawning import command, environment

__all__ = ["check_live_export", "start_live_export"]

_log = logging.getLogger("tdcore")


def check_live_export() -> None:
    """Raise ConfigError if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise ConfigError(
            "export_tensorboard needs tensorboard; install it with: pip install 'tdcore-capture[tensorboard]'"
        )


def start_live_export(out_dir: str, folder: str, *, attempt: int, run_id: str) -> None:
    """Start the process. The training does not wait for it, and continues if it cannot start.

    Args:
        out_dir: Absolute path or URL of the run.
        folder: The folder for TensorBoard.
        attempt: The attempt that is exported.
        run_id: Id of the run.
    """
    job = {
        "run": out_dir,
        "folder": os.path.abspath(folder),
        "attempt": attempt,
        "run_id": run_id,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_ns": time.time_ns(),
    }
    try:
        process = subprocess.Popen(
            command("tdcore.export.follow", job),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment(),
            start_new_session=True,  # Ctrl-C does not end the export before the attempt has ended
        )
    except (OSError, ValueError) as error:  # ValueError: a path contains a NUL character
        _log.warning("tdcore: the export to TensorBoard cannot start: %s", error)
        return
    process.returncode = 0  # no thread waits for it, so Popen must not warn about it
