"""Source: the statistics, parameters and texts of a run, in batches of whole steps.

A part is one worker in one attempt, and each part is exported separately. An attempt is exported with all
of its steps, also with the steps that a later attempt repeats. The memory is limited by the size of a
batch.

Threads: see Trial.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tdcore.errors import ConfigError
from tdcore.modes import ModeKeys
from tdcore.text.quoting import without_surrogates
from tdcore.trial.missing_text import missing_lines
from tdcore.trial.worker_order import worker_order

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = [
    "COLUMNS",
    "DEFAULT_STATISTICS",
    "STATISTICS",
    "Parameter",
    "Part",
    "Selection",
    "Text",
    "finding_texts",
    "parts",
    "run_texts",
]

Parameter: TypeAlias = "bool | int | float | str"

# Statistic of a tensor with several elements -> its description in the help.
STATISTICS = {
    "mean": "mean of the finite elements",
    "std": "their standard deviation",
    "min": "the smallest finite element",
    "max": "the largest finite element",
    "l1": "L1 norm of the finite elements",
    "l2": "L2 norm of the finite elements",
    "abs_min": "the smallest magnitude of the finite elements",
    "abs_max": "the largest magnitude of the finite elements",
    "zero_count": "number of zeros",
    "non_finite": "number of elements that are NaN or infinite",
}
DEFAULT_STATISTICS = ("mean", "std", "l2", "abs_max", "non_finite")

COLUMNS = (
    *(
        "attempt",
        "worker",
        "mode",
        "mode_step",
        "step",
        "time_ns",
        "name",
        "kind",
        "call",
        "dtype",
        "elements",
    ),
    *("status", "reason", "count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count"),
    *("min", "max", "mean", "std", "l1", "l2", "abs_min", "abs_max", "log2_first", "log2_counts"),
)  # of Trial.stats(); batches have the columns "value" and "non_finite" in addition

_BATCH_ROWS = 1 << 14
_MAX_PARAMETER_CHARS = 500  # MLflow and the HParams page of TensorBoard are made for short values


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The part of a run that is exported.

    Attributes:
        attempt: Only this attempt. None: all attempts.
        tensors: Pattern that is searched in names of tensors. None: all tensors.
        kinds: Only these kinds of tensors, such as "loss" and "gradient". Empty: all kinds.
        statistics: Keys of STATISTICS that are exported for tensors with several elements.
        histograms: Whether histograms are exported.
    """

    attempt: int | None = None
    tensors: str | None = None
    kinds: Sequence[str] = ()
    statistics: Sequence[str] = DEFAULT_STATISTICS
    histograms: bool = True

    def __post_init__(self) -> None:
        for name in self.statistics:
            if name not in STATISTICS:
                raise ConfigError(f"{name!r} is not a statistic of an export; use {', '.join(STATISTICS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A finding, a note, or a sentence about missing data.

    Attributes:
        kind: "finding", "note" or "missing".
        name: Name of the rule, or heading of the note.
        text: The text.
        severity: "error" for findings, "info" for notes, "warning" for missing data.
        attempt, worker: Those of the finding or note, if it has them.
        mode, mode_step, step: Step of the finding, if it has one.
        document: The finding or note as JSON values.
    """

    kind: str
    name: str
    text: str
    severity: str
    attempt: int | None = None
    worker: str | None = None
    mode: str | None = None
    mode_step: int | None = None
    step: int | None = None
    document: Any = None

    def __post_init__(self) -> None:
        for name in ("name", "text", "worker"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, without_surrogates(value))


class Part:
    """One worker in one attempt of a run.

    Attributes:
        run_id: Id of the run.
        run_name: Name of the run for users.
        label: "attempt_0/worker_0".
        started_ms: Start of the attempt, in milliseconds since 1970; 0 if it is unknown.
    """

    def __init__(self, trial: Trial, attempt: int, worker: str, selection: Selection) -> None:
        self.run_id, self.run_name = trial.run_id, trial.name
        self.attempt, self.worker = attempt, worker
        self.label = f"attempt_{attempt}/{worker}"
        self.selection = selection
        self._trial = trial
        self._info = trial.attempt_info(attempt)
        self.started_ms = 0 if self._info is None else self._info.started_ns // 10**6

    def batches(self) -> Iterator[pa.Table]:
        """The statistics as tables with COLUMNS, `value` and `non_finite`, in order of global steps."""
        yield from self._read(self.selection.tensors, list(self.selection.kinds) or None)

    def _read(self, tensors: str | None, kinds: list[str] | None) -> Iterator[pa.Table]:
        if self.worker not in self._trial.index.texts("worker"):
            return  # the worker has saved nothing so far
        for table in self._trial.stats_batches(
            tensors,
            kinds=kinds,
            workers=self.worker,
            attempt=self.attempt,
            columns=COLUMNS,
            batch_rows=_BATCH_ROWS,
        ):
            yield with_values(table)

    def parameters(self) -> dict[str, Parameter]:
        """Configuration of the hook, framework, and the first value of each recorded hyper-parameter."""
        found: dict[str, Parameter] = {"run_id": self.run_id, "attempt": self.attempt, "worker": self.worker}
        if self._info is not None:
            document = self._info.document
            for name in ("framework", "framework_version", "world_size", "host"):
                if isinstance(document.get(name), str | int | float):
                    found[name] = short(document[name])
            found.update(flat("configuration", document.get("configuration")))
        found.update(self._hyperparameters())
        return {
            without_surrogates(name): without_surrogates(value) if isinstance(value, str) else value
            for name, value in found.items()
        }

    def _hyperparameters(self) -> dict[str, Parameter]:
        found: dict[str, Parameter] = {}
        for table in self._read(None, ["hyperparameter"]):
            for row in table.select(["name", "value"]).to_pylist():
                if row["value"] is not None:
                    found.setdefault(f"hyperparameter/{row['name']}", row["value"])
        return found


def parts(trial: Trial, selection: Selection) -> Iterator[Part]:
    """The parts of a run, by attempt and rank."""
    attempts = trial.attempts if selection.attempt is None else [selection.attempt]
    for attempt in attempts:
        for worker in sorted(trial.workers_of(attempt), key=worker_order):
            yield Part(trial, attempt, worker, selection)


def run_texts(trial: Trial, selection: Selection) -> list[Text]:
    """Findings, notes and missing data of the selected attempts."""
    chosen = selection.attempt
    found = finding_texts(trial, selection)
    for attempt, notes in sorted(trial.all_notes().items()):
        if chosen in (None, attempt):
            found += [
                Text(
                    kind="note",
                    name=name,
                    text=note_text(said),
                    severity="info",
                    attempt=attempt,
                    document=said,
                )
                for name, said in notes.items()
                if said
            ]
    modes = len(trial.modes())
    found += [
        Text(
            kind="missing",
            name="missing",
            text=line,
            severity="warning",
            attempt=each.attempt,
            worker=each.worker,
        )
        for each in trial.missing()
        if chosen in (None, each.attempt)
        for line in missing_lines([each], modes)
    ]
    return found


def finding_texts(trial: Trial, selection: Selection) -> list[Text]:
    """Findings of the selected attempts."""
    return [
        finding_text(each) for each in trial.findings() if selection.attempt in (None, each.get("attempt"))
    ]


def finding_text(finding: Mapping[str, Any]) -> Text:
    """A line of findings/ as a text."""
    where = ", ".join(
        str(each)
        for each in (
            finding.get("tensor"),
            f"{finding['mode']} step {finding['mode_step']}"
            if finding.get("mode_step") is not None
            else None,
            f"{finding['count']} steps" if (finding.get("count") or 1) > 1 else None,
        )
        if each
    )
    lines = [f"{finding.get('code') or ''} {finding.get('rule') or ''}".strip(), where]
    lines += [str(finding[key]) for key in ("why", "do") if finding.get(key)]
    return Text(
        kind="finding",
        name=str(finding.get("rule") or "finding"),
        text="\n".join(line for line in lines if line),
        severity="error",
        attempt=_integer(finding.get("attempt")),
        worker=finding.get("worker") if isinstance(finding.get("worker"), str) else None,
        mode=finding.get("mode") if finding.get("mode") in ModeKeys.__members__ else None,
        mode_step=_integer(finding.get("mode_step")),
        step=_integer(finding.get("step")),
        document=dict(finding),
    )


def _integer(value: object) -> int | None:
    """A number of a step; None for other values, and for numbers that no tool can store."""
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def note_text(said: object) -> str:
    """A note of the hook as text."""
    if isinstance(said, str):
        return said
    if isinstance(said, Mapping):
        return "\n".join(f"{key}: {value}" for key, value in said.items())
    if isinstance(said, Sequence):
        return "\n".join(map(str, said))
    return str(said)


def flat(prefix: str, value: object) -> Iterator[tuple[str, Parameter]]:
    """The leaves of nested JSON objects, with the path as name. Lists and nulls become JSON text."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from flat(f"{prefix}/{key}", each)
    elif isinstance(value, bool | int | float | str):
        yield prefix, short(value)
    elif value not in (None, [], ()):
        yield prefix, short(json.dumps(value, default=str))


def short(value: Parameter) -> Parameter:
    """The value; a long text is cut."""
    if isinstance(value, str) and len(value) > _MAX_PARAMETER_CHARS:
        return value[: _MAX_PARAMETER_CHARS - 1] + "…"
    return value


def with_values(table: pa.Table) -> pa.Table:
    """The table with two more columns.

    `value` is the element of a tensor with one element: its mean, NaN or an infinity. `non_finite` is the
    number of elements that are NaN or infinite. Both are null in a row without statistics.
    """
    one = pc.and_(pc.equal(table["elements"], 1), pc.equal(table["count"], 1))
    nan, high, low = (pc.greater(table[f"{kind}_count"], 0) for kind in ("nan", "pos_inf", "neg_inf"))
    number = pc.case_when(pc.make_struct(nan, high, low), math.nan, math.inf, -math.inf, table["mean"])
    value = pc.if_else(pc.fill_null(one, False), number, pa.scalar(None, pa.float64()))
    bad = pc.add(pc.add(table["nan_count"], table["pos_inf_count"]), table["neg_inf_count"])
    return table.append_column("value", value).append_column("non_finite", bad)
