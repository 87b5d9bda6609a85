"""Following a run that is being written: draw, wait for new rows, draw again.

On a terminal each drawing replaces the one before. Otherwise, for example in a pipe, the drawings follow each
other, each after a line with the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from tdcore.cli.output import shown
from tdcore.errors import TensorUnavailable
from tdcore.sinks import is_remote

if TYPE_CHECKING:
    from rich.console import Console

    from tdcore.trial import Trial

__all__ = ["watch"]

_NEAR_SECONDS, _FAR_SECONDS = 0.5, 3.0  # between two reads of a run on this machine, and in a bucket


def watch(trial: Trial, out: Console, draw: Callable[[], None]) -> None:
    """Draw whenever there are new rows, until the run has ended or the user presses Ctrl-C.

    Args:
        trial: The run.
        out: The console that `draw` prints to.
        draw: Prints the current state. TensorUnavailable is printed, and the tensor is waited for.
    """
    pause = _FAR_SECONDS if is_remote(trial.path) else _NEAR_SECONDS
    seen: tuple[int, str] | None = None
    with suppress(KeyboardInterrupt):
        while True:
            trial.refresh()
            state = (len(trial.index), trial.status)
            if state != seen:
                seen = state
                _draw_once(trial, out, draw)
            if state[1] != "running":
                return
            time.sleep(pause)


def _draw_once(trial: Trial, out: Console, draw: Callable[[], None]) -> None:
    now = datetime.now().strftime("%H:%M:%S")
    running = trial.status == "running"
    head = f"{now}  {trial.status}" + ("; Ctrl-C ends the display, not the training" if running else "")
    if not out.is_terminal:
        out.print(head)
        _drawn(trial, out, draw)
        out.file.flush()  # a pipe would hold it back until its buffer is full
        return
    with out.capture() as captured:
        out.print(head)
        _drawn(trial, out, draw)
    lines = captured.get().rstrip("\n").split("\n")
    out.clear()
    if running and len(lines) >= out.height:
        left = len(lines) - out.height + 2
        lines = [
            *lines[: out.height - 2],
            f"{left:,} more lines: give a pattern, or enlarge the terminal",
        ]
    out.file.write("\n".join(lines) + "\n")
    out.file.flush()


def _drawn(trial: Trial, out: Console, draw: Callable[[], None]) -> None:
    from tdcore.trial import no_refresh

    try:
        with no_refresh(trial):
            draw()
    except TensorUnavailable as error:
        out.print(f"[yellow]{shown(error, 2000)}[/]")
