"""State: what a runner knows, kept in a file, so that one that was killed goes on where it was.

    run("runs/demo", rules, live=True, until_end=True, state="demo.state")

The file holds which rows were judged, what each rule found and remembers, and which findings were handed to
actions. It is saved after looks that changed something, at most about once a second, at once when there is
something for actions, and at the end; each time whole or not at all. Started again with it, a runner judges
the rows that came since (those of the last second maybe once more, from the state before them), so that
verdicts and findings are those of one uninterrupted run. Findings are saved before actions see them and once
more after, and with them which action has yet to tell what: a message that was under way when the runner was
killed is repeated, one that failed is tried again, and none is left out. What was found when no action was
given stays so. A rule of the older kind keeps its place; what it holds in
attributes of its own begins anew. One runner at a time has the file; another is refused.

The file is the user's own, but it may come from somebody else: reading it makes numbers, texts, containers,
arrays and dataclasses of rules, and calls nothing but what builds these. Threads: belongs to one engine.
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
from tdcore.documents import clipped
from tdcore.errors import ConfigError
from tdcore.quoting import quoted
from tdcore.rules.base import Rule
from tdcore.rules.legacy import LegacyRule
from tdcore.rules.safe_pickle import UnreadableError, UnsaveableError, dump, load
from tdcore.rules.step_range import step_range_of, without_step_range

__all__ = ["ResumableSource", "StateFile", "locked_state"]

_MAGIC = b"tdcore rules state 3\n"
_DIGEST_BYTES = 32
_SAVE_EVERY_SECONDS = 1.0
_SHOWN, _MAX_CHARS = 20, 600  # rules, and characters, of what a message says of a state
_COST = 20  # times as long as it takes to save, at least, until it is saved again


class ResumableSource(Protocol):
    """A source that can say where it is and go on from there (rules/run_source.py)."""

    def position(self) -> dict[str, Any]:
        """Which run this is and which of its rows were handed out, in plain values."""
        ...

    def resume(self, position: dict[str, Any]) -> None:
        """Hands out only the others. Before the first `next`, which refuses another run."""
        ...


@contextmanager
def locked_state(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Keeps other runners from the state meanwhile: two would both act, and save over each other's work.

    None: there is no state. Raises ConfigError when another has it, or there is no folder for it.
    """
    if path is None:
        yield
        return
    place = Path(path)
    if not place.parent.is_dir():
        raise ConfigError(f"state {place}: there is no folder {place.parent}; make it first")
    name = place.with_name(f".{place.name}.lock")  # stays there: a lock on a name must not move
    try:
        lock = name.open("ab")
    except OSError as error:
        raise ConfigError(f"state {place}: its folder cannot be written ({error}); give another") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"state {place} is in use by another runner; end that one first, or give another file"
            ) from error
        except OSError:  # a file system without locks
            pass
        yield


class ResumableEngine(Protocol):
    """What is kept beside the source's position: the engine."""

    problems: list[str]
    before_acting: Callable[[], None]

    @property
    def labels(self) -> list[tuple[str, Rule]]:
        """The rules by the names they run under."""
        ...

    def state(self) -> dict[str, Any]:
        """What was found and remembered so far, in plain values and dataclasses of rules."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Takes such a state over."""
        ...


class StateFile:
    """Saves an engine and its source to `path`, and restores them.

    A state of other rules than the engine's is refused. attempt: as given to the source. Within `alone`.
    clock: monotonic seconds.
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
        self._at_rest = True  # not in the middle of a look
        self._urgent = False
        engine.before_acting = self._before_acting

    def resume(self) -> None:
        """Reads the file, if there is one, and takes it over. Before the first look.

        A damaged file, or one of another version of tdcore, is a problem, and the run is judged anew. Raises
        ConfigError when the file is no state, is of other rules or of another attempt, or cannot be read.
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
        except Exception as error:  # somebody else's file, with a right checksum: anything may be in it
            raise ConfigError(
                f"state {self.path} cannot be taken over ({type(error).__name__}: {clipped(str(error))}); "
                "give another file, or delete it to judge the run anew"
            ) from error

    def looks(self) -> None:
        """Before each look; `looked` comes after it."""
        self._at_rest = False

    def looked(self, changed: bool) -> None:
        """After a look: saves when something changed and the last time was a while ago, or actions ran."""
        self._at_rest = True
        self._changed = self._changed or changed
        due = self._urgent or self._clock() - self._saved_at >= self._pause
        if self._changed and due:
            self.save()
            self._urgent = False

    def _before_acting(self) -> None:
        """All rows of the look are judged; its findings are saved as not delivered."""
        self.save()
        self._urgent = True

    def save(self) -> None:
        """Saves now. What stands in the way is a problem of the engine's; judging goes on."""
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
        """After actions had time to tell all: saves what they have not told, for the next start."""
        if self._at_rest:
            self.save()

    def close(self) -> None:
        """Saves what is not saved. A look that was broken off is not: it is made again the next time."""
        if self._changed and self._at_rest:
            self.save()

    def _decoded(self, data: bytes) -> dict[str, Any] | None:
        """What the file says; None, and a problem, when it is damaged or of another version."""
        if not data.startswith(_MAGIC[:19]):
            raise ConfigError(f"{self.path} is no state of tdcore's rules; give another file")
        head = len(_MAGIC) + _DIGEST_BYTES
        body = data[head:]
        if not data.startswith(_MAGIC):
            return self._nothing("is of another format")
        if hashlib.sha256(body).digest() != data[len(_MAGIC) : head]:
            return self._nothing("is damaged (its checksum does not match)")
        try:
            state = load(body, self._modules)
            version = state["version"]
            if not {"identity", "position", "engine"} <= set(state):
                raise UnreadableError("it lacks a part")
        except (UnreadableError, KeyError, TypeError) as error:
            return self._nothing(f"cannot be taken over ({quoted(error, _MAX_CHARS)})")
        if version != __version__:
            return self._nothing(f"is of tdcore {_version(version)}, this is {__version__}")
        return dict(state)

    def _nothing(self, why: str) -> dict[str, Any] | None:
        self._problem(f"state {self.path} {why}: the run is judged anew, and actions may be repeated")
        return None

    def _problem(self, text: str) -> None:
        if text not in self._engine.problems:
            self._engine.problems.append(text)


def _write(path: Path, parts: list[bytes]) -> None:
    """The file is replaced whole, and durable on return."""
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
    """The class that decides: the user's, for a rule of the older kind."""
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
    """What a state says that it is of, in a few words: it may be anybody's. Raises what odd types raise."""
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
