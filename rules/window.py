"""Window: the rows of complete steps that a rule gets in one call, as columns.

Rules work on whole tables: they use masks over all rows, and a regular expression is tested once per distinct
name. Arrays that several rules use are computed once and are read-only. A Window belongs to one rule, one
call and one thread. It reads payloads (the values of tensors) on demand. Only its counts of judged and
missing rows change.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tdcore.errors import ConfigError
from tdcore.format.run_patterns import RunPatterns
from tdcore.rules.base import Finding, Rule
from tdcore.rules.columns import Columns, Floats, Ints, Mask
from tdcore.rules.measures.group_codes import group_codes
from tdcore.trial.worker_order import worker_order

if TYPE_CHECKING:
    from tdcore.rules.samples import Samples
    from tdcore.rules.step_times import StepTimes

__all__ = ["Coverage", "Members", "Unlisted", "Window", "compile_pattern"]

_NAN_AT_LEAVES = "(^|/)trees/(Split|Yes|No|Missing)$"  # columns of tables of trees, see docs/xgboost.md
_MAX_MATCHES = 1 << 17  # texts whose results are kept for the next window


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Members of a collection: the listed tensors, and the tensors whose names one of the patterns finds."""

    tensor_names: frozenset[str] = frozenset()
    include_regex: tuple[str, ...] = ()
    patterns: RunPatterns = field(default_factory=RunPatterns, repr=False, compare=False)

    def of(self, names: Sequence[str]) -> frozenset[str]:
        """The names among `names` that belong to the collection."""
        listed = self.tensor_names.intersection(names)
        return listed | self.patterns.matching(self.include_regex, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows and context of one call of a rule's `check`.

    Attributes:
        columns: The rows.
        memory: The rule's own values, which the engine keeps from call to call. pickle must be able to store
            them.
        ended: (attempt, worker) pairs that get no rows after these. A window with such pairs may be empty.
        members: Returns the members of a collection; None if the run has no collection of that name.
        payload: Reads the values of one row as an array; raises tdcore.errors.RunError if there are none.
        room: Number of findings that may be created in this call.
        now_ns: Time of day of this poll, like `time_ns` of rows.
        coverage: Counts of judged and missing rows.
        run_patterns: Compiles the rule's patterns with limits if the rule was named by the run; None if the
            user named it.
        notes: Returns the notes of an attempt's hook so far (Trial.notes()); {} if there are none.
        epoch: Returns the epoch of a step of an attempt and worker; None if it is not known.
        samples: New system samples, for rules that judge them; such a window has no rows. None in all other
            windows.
        step_times: New times of steps, for rules that judge them; such a window has no rows. None in all
            other windows.
        world_size: Number of workers of the newest attempt; 0 if it is not known.
        positions: Position of each row in the order of execution (Finding.position); None: the row number.
    """

    columns: Columns
    memory: MutableMapping[Any, Any]
    ended: frozenset[tuple[int, str]] = frozenset()
    members: Callable[[str], Members | None] = lambda name: None
    payload: Callable[[int], npt.NDArray[Any]] | None = None
    room: int = sys.maxsize
    now_ns: int = 0
    coverage: Coverage = field(default_factory=lambda: Coverage())
    run_patterns: RunPatterns | None = None
    notes: Callable[[int], Mapping[str, Any]] = lambda attempt: {}
    epoch: Callable[[int, str, int], int | None] = lambda attempt, worker, step: None
    samples: Samples | None = None
    step_times: StepTimes | None = None
    world_size: int = 0
    positions: Ints | None = None

    # Selection of rows.
    # -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.columns.table.num_rows)

    @property
    def ok(self) -> Mask:
        """Mask of the rows that have a value, that is, rows that are neither absent nor skipped."""
        columns = self.columns
        return columns.shared(("ok",), lambda: columns.where("status", lambda text: text in ("ok", "lost")))

    @property
    def counted(self) -> Mask:
        """Mask of the rows with statistics."""
        return self.columns.present("count")

    @property
    def finite(self) -> Floats:
        """Number of finite elements of each row."""
        return self.columns.shared(("finite",), self._finite)

    def _finite(self) -> Floats:
        floats = self.columns.floats
        return floats("count") - floats("nan_count") - floats("pos_inf_count") - floats("neg_inf_count")

    @property
    def additive_masks(self) -> Mask:
        """Mask of inputs that contain only 0 and -Inf. These are attention masks, which are not a fault."""
        floats = self.columns.floats
        others = floats("nan_count") + floats("pos_inf_count")
        masks: Mask = (floats("neg_inf_count") > 0) & (others == 0) & (floats("abs_max") == 0)
        return masks & self.kind("input")

    @property
    def expected_non_finite(self) -> Mask:
        """Mask of rows that are not finite by design: attention masks, and NaN at leaves of trees."""
        infinite = self.columns.floats("pos_inf_count") + self.columns.floats("neg_inf_count")
        named = self.columns.where("name", _matches_of((_NAN_AT_LEAVES,)).__getitem__)
        leaves: Mask = named & self.kind("custom") & (infinite == 0)
        return self.additive_masks | leaves

    def kind(self, *kinds: str) -> Mask:
        """Mask of the rows of tensors of these kinds, such as "gradient"."""
        columns = self.columns
        return columns.shared(("kind", kinds), lambda: columns.where("kind", lambda kind: kind in kinds))

    def named(self, patterns: Iterable[str]) -> Mask:
        """Mask of the rows whose tensor name matches one of the regular expressions (re.search)."""
        wanted = tuple(patterns)
        return self.columns.shared(("named", wanted), lambda: self._named(wanted))

    def _named(self, patterns: tuple[str, ...]) -> Mask:
        if self.run_patterns is not None:
            return self._named_by_run(patterns, self.run_patterns)
        known = _matches_of(patterns)
        return self.columns.where("name", known.__getitem__)

    def _named_by_run(self, patterns: tuple[str, ...], engine: RunPatterns) -> Mask:
        found = engine.matching(patterns, self.columns.texts("name"))
        for pattern in patterns:
            if pattern in engine.refused:
                raise ConfigError(
                    f"the pattern {pattern[:120]!r} comes from the run, and is not used "
                    f"({engine.refused[pattern]}); to use it, name the rule and its pattern yourself"
                )
        return self.columns.where("name", found.__contains__)

    def in_collections(self, collections: Iterable[str]) -> Mask:
        """Mask of the rows of tensors in one of the collections. The collection "all" has every tensor."""
        names = tuple(collections)
        return self.columns.shared(("collections", names), lambda: self._in_collections(names))

    def _in_collections(self, names: tuple[str, ...]) -> Mask:
        if "all" in names:
            return np.ones(len(self), dtype=np.bool_)
        mask = np.zeros(len(self), dtype=np.bool_)
        for collection in names:
            kind = KIND_OF_COLLECTION.get(collection)
            members = self.members(collection) or Members()
            if kind is not None:
                mask |= self.kind(kind)
                mask |= self.columns.where("name", members.tensor_names.__contains__)
            else:
                mask |= self.columns.where("name", members.of(self.columns.texts("name")).__contains__)
        return mask

    def selected(self, collections: Iterable[str], patterns: Iterable[str]) -> Mask:
        """Union of `in_collections` and `named`; all rows if both arguments are empty."""
        collections, patterns = tuple(collections), tuple(patterns)
        if not collections and not patterns:
            return np.ones(len(self), dtype=np.bool_)
        return self.in_collections(collections) | self.named(patterns)

    # Results of the rule.
    # ---------------------------------------------------------------------------

    def judged(self, rows: int) -> None:
        """Count rows that the rule has judged, with or without a finding."""
        self.coverage.judged += rows

    def missing(self, why: str, rows: int) -> None:
        """Count rows that the rule needs and could not judge.

        why: the reason. Use the same text for the same reason.
        """
        if rows:
            self.coverage.missing[why] = self.coverage.missing.get(why, 0) + rows

    def listed(self, rows: Ints) -> list[int]:
        """The rows to report, at most `room`, with the first rows of each tensor. Others are only counted.

        Use this method in rules that may report many rows: creating a Finding for each row takes longer than
        judging the rows.
        """
        return rows[self.listed_at(rows)].tolist()  # type: ignore[no-any-return]

    def listed_at(self, rows: Ints) -> Ints:
        """The positions in `rows` of the rows that `listed` returns, ascending."""
        self.coverage.selections += 1
        if len(rows) <= self.room:
            return np.arange(len(rows))
        columns = self.columns
        codes = group_codes(columns, rows, "attempt", "worker", "mode", "name")
        _, tensor, size = np.unique(codes, return_inverse=True, return_counts=True)
        order = np.argsort(tensor, kind="stable")
        starts = np.cumsum(size) - size
        nth = np.empty(len(rows), dtype=np.int64)  # of its tensor
        nth[order] = np.arange(len(rows)) - np.repeat(starts, size)
        by_nth = np.lexsort((*self._places(rows), nth))
        left = by_nth[self.room :]
        number = np.bincount(tensor[left], minlength=size.size)
        newest = {name: np.full(size.size, -1, dtype=np.int64) for name in ("step", "mode_step")}
        for name, steps in newest.items():
            np.maximum.at(steps, tensor[left], columns.ints(name)[rows[left]])
        for at in np.flatnonzero(number).tolist():
            self.coverage.skip(
                self.layer(int(rows[order[starts[at]]]))[:4],
                *(int(steps[at]) for steps in newest.values()),
                number=int(number[at]),
            )
        return np.sort(by_nth[: self.room])

    def _places(self, rows: Ints) -> tuple[npt.NDArray[Any], ...]:
        """Sort keys of rows in the order of WindowFindings, the last key first."""
        columns = self.columns
        codes, texts = columns.codes("worker")
        workers = np.empty(len(texts), dtype=np.int64)
        workers[sorted(range(len(texts)), key=lambda code: worker_order(texts[code] or ""))] = np.arange(
            len(texts)
        )
        positions = rows if self.positions is None else self.positions[rows]
        return positions, columns.ints("attempt")[rows], workers[codes[rows]], columns.ints("step")[rows]

    def finding(
        self, rule: Rule, row: int, *, numbers: Mapping[str, float | int | str], why: str, do: str
    ) -> Finding:
        """Create a finding of `rule` about the tensor and step of one row.

        Args:
            rule: The rule.
            row: The row.
            numbers: Measured values and their limits, by name.
            why: One sentence with the numbers.
            do: Advice.
        """
        columns = self.columns
        return Finding(
            rule=type(rule).__name__,
            code=rule.code,
            step=int(columns.ints("step")[row]),
            mode=columns.text("mode", row),
            mode_step=int(columns.ints("mode_step")[row]),
            worker=columns.text("worker", row),
            attempt=int(columns.ints("attempt")[row]),
            tensor=columns.text("name", row),
            numbers=numbers,
            why=why,
            do=do,
            position=int(row if self.positions is None else self.positions[row]),
        )

    def layer(self, row: int) -> tuple[int, str, str, str, int]:
        """Identity of a row's tensor, the same at all steps: attempt, worker, mode, name, call."""
        columns = self.columns
        worker, mode, name = (columns.text(each, row) for each in ("worker", "mode", "name"))
        return (int(columns.ints("attempt")[row]), worker, mode, name, int(columns.ints("call")[row]))

    def read(self, rows: Iterable[int]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The payloads of these rows, one at a time."""
        if self.payload is None:
            return
        for row in rows:
            yield row, self.payload(int(row))


@dataclass(slots=True, kw_only=True)
class Coverage:
    """Counts of judged rows. A rule changes them through its Window; the engine reads them.

    selections: number of calls of Window.listed.
    """

    judged: int = 0
    unlisted: dict[tuple[int, str, str, str], Unlisted] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    selections: int = 0

    def skip(self, tensor: tuple[int, str, str, str], step: int, mode_step: int, *, number: int = 1) -> None:
        """Count findings that are not created.

        Args:
            tensor: Attempt, worker, mode and name.
            step, mode_step: Global step and step of the mode of the newest of these findings.
            number: Number of findings.
        """
        before = self.unlisted.get(tensor, Unlisted(0, step, mode_step))
        newest = max(step, before.step), max(mode_step, before.mode_step)
        self.unlisted[tensor] = Unlisted(before.number + number, *newest)


class Unlisted(NamedTuple):
    """Findings of one tensor that were counted but not created: their number and their newest step."""

    number: int
    step: int
    mode_step: int


# Built-in collections with one kind of tensor. Their members are known even before collections.json is
# written. Their patterns select only tensors of that kind, so a selection by name alone would be too large.
KIND_OF_COLLECTION = {
    "weights": "weight",
    "biases": "bias",
    "gradients": "gradient",
    "losses": "loss",
    "inputs": "input",
    "outputs": "output",
    "scalars": "scalar",
    "optimizer_variables": "optimizer_state",
    "hyperparameters": "hyperparameter",
    "metrics": "metric",
}


class _Matches(dict[str, bool]):
    """Whether one of some patterns is found in a text, computed once for each text."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        super().__init__()
        self._tests = [compile_pattern(pattern) for pattern in patterns]

    def __missing__(self, text: str) -> bool:
        found = any(test.search(text) for test in self._tests)
        if len(self) < _MAX_MATCHES:
            self[text] = found
        return found


_matches_of = lru_cache(maxsize=128)(_Matches)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises ConfigError with the pattern and the position of the error."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{pattern[:200]!r} is not a regular expression: {error}") from error
