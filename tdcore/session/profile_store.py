"""ProfileStore: passes finished profiles of a training process to processes that store them in the run.

Threads: the training thread; wait() by any thread.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdcore.session.profile_writer import JOB_FILE, write_profile
from tdcore.session.spawning import command, environment

__all__ = ["ProfileStore"]

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class _Thread:
    """A writer that is a thread of this process."""

    thread: threading.Thread

    def poll(self) -> int | None:
        return None if self.thread.is_alive() else 0


class ProfileStore:
    """Stores the profiles of one worker and attempt.

    Args:
        out: Folder or URL of the run.
        run_id: Id of the run.
        worker: Name of the worker.
        attempt: Number of the attempt.
        here: Store in a thread of this process instead of another process.
    """

    def __init__(self, out: str, *, run_id: str, worker: str, attempt: int, here: bool) -> None:
        self._out = out
        self._place = {"run_id": run_id, "worker": worker, "attempt": attempt}
        self._here = here
        self._number = 0
        self._writers: list[subprocess.Popen[bytes] | _Thread] = []

    def next_number(self) -> int:
        """The number of the next profile; each number is returned once."""
        number, self._number = self._number, self._number + 1
        return number

    def store(self, folder: Path, document: Mapping[str, Any]) -> None:
        """Start to store the files in the folder, which is removed afterwards. Returns at once.

        document: the document of the profile without the fields of its place and files. Raises OSError.
        """
        job = {"out": self._out, "document": {**self._place, **document}}
        (folder / JOB_FILE).write_text(json.dumps(job))
        self._running()
        if self._here:
            thread = threading.Thread(
                target=write_profile, args=(folder,), name="tdcore profile", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down
                write_profile(folder)
            else:
                self._writers.append(_Thread(thread))
            return
        self._writers.append(
            subprocess.Popen(
                command("tdcore.session.profile_writer", {"folder": str(folder)}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=environment(),
                start_new_session=True,
            )
        )

    def _running(self) -> bool:
        """Whether a writer runs. Collects the exit statuses of ended processes."""
        self._writers = [each for each in self._writers if each.poll() is None]
        return bool(self._writers)

    def wait(self, seconds: float) -> bool:
        """Wait until all profiles are stored, at most so many seconds. Return whether they are."""
        end = time.monotonic() + seconds
        while self._running():
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_SECONDS)
        return True
