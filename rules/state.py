"""StateFile: saves the state of a runner to a file, so that a killed runner can continue.

    run("runs/demo", rules, live=True, until_end=True, state="demo.state")

The file has the rows that were judged, the findings and the memory of each rule, and which findings were
passed to actions. It is saved atomically: after polls that changed something, at most about once a second;
immediately before and after actions get new findings; and at the end. A restarted runner judges the rows that
arrived after the save. It may judge rows of the last second again, but from the state before them, so
verdicts and findings are those of one uninterrupted run.

Findings are saved before actions get them. After the actions, the file also has the findings that each action
has not handled. So a message that was being sent when the runner was killed is repeated, a failed message is
retried, and no message is lost. Findings that were saved by a runner without actions are not passed on later.
A rule in the form of smdebug continues at its step, but its own attributes start from their initial values. A
lock keeps a second runner from using the file.

The file may come from another user. Reading it creates only numbers, texts, containers, arrays and
dataclasses of rules, and runs no other code. Threads: belongs to one engine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol

from tdcore._version import __version__
from tdcore.errors import ConfigError
from tdcore.format.documents import clipped
from tdcore.rules.base import Rule
from tdcore.rules.legacy import LegacyRule
from tdcore.rules.safe_pickle import UnreadableError, UnsaveableError, dump, load
from tdcore.rules.step_range import step_range_of, without_step_range
from tdcore.text.quoting import quoted

__all__ = ["ResumableSource", "StateFile", "locked_state"]

_MAGIC = b"tdcore rules state 5\n"
_DIGEST_BYTES = 32
_SAVE_EVERY_SECONDS = 1.0
_SHOWN, _MAX_CHARS = 20, 600  # limits for the rules and characters of a state in a message
_COST = 20  # the pause after a save is at least this multiple of its duration


class ResumableSource(Protocol):
    """A source whose position can be saved and resumed (rules/run_source.py)."""

    def position(self) -> dict[str, Any]:
        """The run and the rows that were returned, in plain values."""
        ...

    def resume(self, position: dict[str, Any]) -> None:
        """Skip these rows. Call it before the first `next`, which raises ConfigError for another run."""
        ...


@contextmanager
def locked_state(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Lock the state file within the block: two runners would run actions twice and overwrite the file.

    path: None if there is no state file. Raises ConfigError if another runner has the lock, or if the folder
    does not exist.
    """
    if path is None:
        yield
        return
    place = Path(path)
    if not place.parent.is_dir():
        raise ConfigError(f"state {place}: there is no folder {place.parent}; create it first")
    name = place.with_name(f".{place.name}.lock")  # never removed: a lock on a removed file locks nothing
    try:
        lock = name.open("ab")
    except OSError as error:
        raise ConfigError(
            f"state {place}: its folder cannot be written ({error}); give a file in another folder"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"state {place} is in use by another runner; stop that runner first, or give another file"
            ) from error
        except OSError:  # a file system without locks
            pass
        yield


class ResumableEngine(Protocol):
    """An engine whose state can be saved and restored."""

    problems: list[str]
    before_acting: Callable[[], None]

    @property
    def labels(self) -> list[tuple[str, Rule]]:
        """Label and rule of each rule."""
        ...

    def state(self) -> dict[str, Any]:
        """Findings and memory so far, in plain values and dataclasses of rules."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state of the engine by a saved state."""
        ...


class StateFile:
    """Saves an engine and its source to `path`, and restores them. Use it within `locked_state`.

    A state of other rules raises ConfigError. attempt: the argument of the source. clock: monotonic seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        engine: ResumableEngine,
        source: ResumableSource,
        *,
        attempt: int | str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self._engine = engine
        self._source = source
        rules = engine.labels
        self._modules = {_class_of(rule).__module__ for _, rule in rules}
        self._identity = {
            "attempt": attempt,
            "rules": [[label, _class_of(rule).__qualname__, _parameters(rule)] for label, rule in rules],
        }
        self._clock = clock
        self._pause = _SAVE_EVERY_SECONDS
        self._saved_at = -self._pause
        self._changed = False  # since it was saved
        self._between_polls = True
        self._urgent = False
        engine.before_acting = self._before_acting

    def resume(self) -> None:
        """Read the file, if it exists, and restore its state. Call it before the first poll.

        A damaged file, or a file of another version of tdcore, is reported as a problem, and the run is
        judged from its beginning. Raises ConfigError if the file is not a state, is of other rules or another
        attempt, or cannot be read.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"state {self.path} cannot be read: {error}") from error
        state = self._decoded(data)
        if state is None:
            return
        try:
            if state["identity"] != self._identity:
                raise ConfigError(
                    f"state {self.path} is of other rules or parameters: it has {_text(state['identity'])}, "
                    f"this call has {_text(self._identity)}; give another file, or delete it to judge the "
                    "run anew"
                )
            self._source.resume(state["position"])
            self._engine.restore(state["engine"])
        except ConfigError:
            raise
        except Exception as error:  # the checksum is right, but the file may have any contents
            raise ConfigError(
                f"state {self.path} cannot be taken over ({type(error).__name__}: {clipped(str(error))}); "
                "give another file, or delete it to judge the run anew"
            ) from error

    def before_poll(self) -> None:
        """Called before each poll of the run."""
        self._between_polls = False

    def after_poll(self, changed: bool) -> None:
        """Called after each poll. Saves if something changed and a save is due, or if actions ran."""
        self._between_polls = True
        self._changed = self._changed or changed
        due = self._urgent or self._clock() - self._saved_at >= self._pause
        if self._changed and due:
            self.save()
            self._urgent = False

    def _before_acting(self) -> None:
        """Save the findings of this poll as not delivered."""
        self.save()
        self._urgent = True

    def save(self) -> None:
        """Save now. A failure is added to the engine's problems, and the rules continue."""
        start = self._clock()
        content = {
            "version": __version__,
            "identity": self._identity,
            "position": self._source.position(),
            "engine": self._engine.state(),
        }
        try:
            body = dump(content)
            _write(self.path, [_MAGIC, hashlib.sha256(body).digest(), body])
            self._changed = False
        except (OSError, UnsaveableError) as error:
            self._problem(f"state could not be saved to {self.path}: {error}")
        self._saved_at = self._clock()
        self._pause = max(_SAVE_EVERY_SECONDS, _COST * (self._saved_at - start))

    def acted(self) -> None:
        """Called after actions have ended: save the findings that they have not handled."""
        if self._between_polls:
            self.save()

    def close(self) -> None:
        """Save changes. An interrupted poll is not saved; the next start repeats it."""
        if self._changed and self._between_polls:
            self.save()

    def _decoded(self, data: bytes) -> dict[str, Any] | None:
        """The contents of the file; None, with a problem, if it is damaged or of another version."""
        if not data.startswith(_MAGIC[:19]):
            raise ConfigError(f"{self.path} is not a state of tdcore's rules; give another file")
        head = len(_MAGIC) + _DIGEST_BYTES
        body = data[head:]
        if not data.startswith(_MAGIC):
            return self._unusable("is of another format")
        if hashlib.sha256(body).digest() != data[len(_MAGIC) : head]:
            return self._unusable("is damaged (its checksum does not match)")
        try:
            state = load(body, self._modules)
            version = state["version"]
            if not {"identity", "position", "engine"} <= set(state):
                raise UnreadableError("a part is missing")
        except (UnreadableError, KeyError, TypeError) as error:
            return self._unusable(f"cannot be taken over ({quoted(error, _MAX_CHARS)})")
        if version != __version__:
            return self._unusable(f"is of tdcore {_version(version)}, this is {__version__}")
        return dict(state)

    def _unusable(self, why: str) -> dict[str, Any] | None:
        self._problem(f"state {self.path} {why}: the run is judged anew, and actions may be repeated")
        return None

    def _problem(self, text: str) -> None:
        if text not in self._engine.problems:
            self._engine.problems.append(text)


def _write(path: Path, parts: list[bytes]) -> None:
    """Replace the file atomically; durable on return."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _class_of(rule: Any) -> type[Any]:
    """The class of a rule; for a rule in the form of smdebug, the user's class."""
    rule = without_step_range(rule)
    return rule.kind if isinstance(rule, LegacyRule) else type(rule)


def _parameters(rule: Any) -> list[list[str]]:
    """All parameters as text."""
    if step_range_of(rule):
        return [*_parameters(without_step_range(rule)), *map(list, step_range_of(rule).items())]
    if isinstance(rule, LegacyRule):
        return [[name, value] for name, value in sorted(rule.parameters.items())]
    if not is_dataclass(rule):
        return []
    return [[field.name, repr(getattr(rule, field.name))] for field in fields(rule) if field.init]


def _version(version: Any) -> str:
    return quoted(version, 40) if isinstance(version, str) else "of no version"


def _text(identity: Any) -> str:
    """The rules and attempt of a state, as text. Raises various errors for unexpected types."""
    attempt, rules = identity["attempt"], identity["rules"]
    texts = [
        label + (f" ({', '.join(f'{name}={value}' for name, value in given)})" if given else "")
        for label, _, given in rules[:_SHOWN]
        if isinstance(label, str) and all(type(text) is str for pair in given for text in pair)
    ]
    more = [f"{len(rules) - _SHOWN} more"] if len(rules) > _SHOWN else []
    text = quoted(", ".join([*texts, *more]) or "no rules", _MAX_CHARS)
    if attempt is None:
        return text
    return f"{text}, attempt {quoted(attempt, 20) if type(attempt) in (int, str) else '?'}"
