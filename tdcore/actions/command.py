"""Command: run a program for new findings, which are passed in its standard input and its environment.

The input is one JSON object: {"run": ..., "count": ..., "findings": [...]}. The environment has TDCORE_RUN
and TDCORE_COUNT, and for the first finding TDCORE_RULE, _CODE, _STEP (global), _MODE, _MODE_STEP, _ATTEMPT,
_WORKER, _TENSOR and _WHY.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from tdcore.actions.base import Notice, Notifier, printable, redacted, seconds_of
from tdcore.actions.program import Program
from tdcore.errors import ActionError, ConfigError

__all__ = ["Command"]

_PIPE_BYTES = 1 << 20  # at least the capacity of a pipe
_TAIL_BYTES = 4096  # kept from the end of the program's error output
_POLL_SECONDS = 0.05  # between two checks whether the program has ended
_LONG_PART = 16  # characters
_MAX_VALUE = 10_000  # maximum number of characters in a variable


class Command(Notifier):
    """Run a program once per poll with new findings.

    A program that failed is not run again, because it may have done a part of its work. All signals have
    their defaults in the program, even if this process ignores them (program.py). Messages contain only the
    name of the program, never its arguments. The standard output is discarded; if the program fails, the last
    line of its error output is in the report.

    Args:
        argv: The program and its arguments. One string is split as in a shell, without expansion.
        shell: Run `argv`, one string, with /bin/sh instead. The string is not changed; data of the run is in
            the environment.
        timeout: Time after which the program and its process group are killed.
        again_after: Time after which the program is run again for the same notice key; None: never.
        max_listed: Maximum number of findings in the input.

    Raises:
        ConfigError: A value is invalid.
    """

    name = "command"
    repeats: ClassVar[bool] = False

    def __init__(
        self,
        argv: str | Sequence[str],
        *,
        shell: bool = False,
        timeout: timedelta = timedelta(seconds=60),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._timeout = seconds_of("Command.timeout", timeout)
        self._argv = _checked(argv, shell=shell)
        self._shell = shell
        self._shown = "/bin/sh" if shell else os.path.basename(self._argv[0]) or self._argv[0]
        self._secrets = _secrets(self._argv[not shell :])
        self._cancelled = False

    def __repr__(self) -> str:
        return f"Command({self._shown!r}, ...)"

    def send(self, notice: Notice) -> bool:
        """Send one message for new findings. Raises ActionError."""
        with tempfile.TemporaryFile() as given, OutputTail() as tail:
            given.write(json.dumps(notice.to_json()).encode())
            given.seek(0)
            try:
                program = Program(
                    ["/bin/sh", "-c", *self._argv] if self._shell else self._argv,
                    stdin=given.fileno(),
                    stderr=tail.write_end,
                    env={**os.environ, **_environment(notice)},
                )
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it cannot be run"
                raise ActionError(f"{self._shown} could not be started: {reason}") from None
            code = self._wait(program, tail)
            if code:
                raise ActionError(self._failure(code, tail.text))
        return True

    def cancel(self) -> None:
        """See Action: kill the program that runs, or is about to run, with its process group."""
        self._cancelled = True

    def _wait(self, program: Program, tail: OutputTail) -> int:
        """Wait for the exit status. The output is read during the wait, so that the program never blocks."""
        deadline = time.monotonic() + self._timeout
        try:
            while program.poll() is None:
                if time.monotonic() >= deadline:
                    raise ActionError(
                        f"{self._shown} was killed: it took longer than {self._timeout:g} s; increase timeout"
                    )
                if self._cancelled:
                    raise ActionError(
                        f"{self._shown} was killed: the rules have ended and do not wait for it"
                    )
                tail.read(_POLL_SECONDS)
            tail.read(0.0)
            return program.wait()
        except BaseException:
            program.kill()
            program.wait()
            raise

    def _failure(self, code: int, output: str) -> str:
        how = f"ended with status {code}" if code > 0 else f"was killed by signal {-code}"
        lines = output.strip().splitlines()
        return f"{self._shown} {how}" + (f": {redacted(lines[-1], self._secrets)}" if lines else "")


class OutputTail:
    """A pipe that keeps the end of the written data.

    Child processes may keep the other end open. They are not waited for, and their writes fail after close.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._ready = select.poll()
        self._ready.register(self._read_end, select.POLLIN)
        self._kept = b""

    def __enter__(self) -> OutputTail:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._read_end)
        os.close(self.write_end)

    @property
    def text(self) -> str:
        """The end of the output."""
        return self._kept.decode("utf-8", "replace")

    def read(self, seconds: float) -> None:
        """Read the available output, at most one pipe buffer, after a wait of up to `seconds`."""
        if self._ready.poll(seconds * 1000):
            self._kept = (self._kept + os.read(self._read_end, _PIPE_BYTES))[-_TAIL_BYTES:]


def _checked(argv: object, *, shell: bool) -> list[str]:
    if shell:
        if not isinstance(argv, str) or not argv.strip():
            raise ConfigError("Command.argv must be one string with shell=True")
        return [argv]
    if isinstance(argv, str):
        try:
            argv = shlex.split(argv)
        except ValueError as error:
            raise ConfigError(f"Command.argv cannot be split into words: {error}") from None
    words = list(argv) if isinstance(argv, Sequence) else []
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
        raise ConfigError("Command.argv must be a program and its arguments: a string, or a list of strings")
    return words


def _secrets(words: Sequence[str]) -> list[str]:
    """The arguments, and parts of arguments that are probably secrets."""
    parts = (part for word in words for part in re.split(r"[\s'\"=;|&<>()]+", word))
    return [*words, *(part for part in parts if len(part) >= _LONG_PART or re.search("[0-9]", part))]


def _environment(notice: Notice) -> dict[str, str]:
    first = notice.findings[0]
    values = {
        "RUN": notice.run,
        "COUNT": len(notice.findings),
        "RULE": first.rule,
        "CODE": first.code,
        "STEP": first.step,
        "MODE": first.mode,
        "MODE_STEP": first.mode_step,
        "ATTEMPT": first.attempt,
        "WORKER": first.worker,
        "TENSOR": first.tensor,
        "WHY": first.why,
    }
    return {f"TDCORE_{name}": printable(str(value))[:_MAX_VALUE] for name, value in values.items()}
