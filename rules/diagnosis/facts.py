"""Facts of a run: the history of each tensor as arrays, which the signs of causes use.

Plain values, created once from the index of a run; payloads are not read. Threads: any, after creation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import RunError
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.trial import Trial

__all__ = ["FACT_COLUMNS", "Facts", "History", "histories_of"]

# Names of embeddings, whose rows are looked up.
_LOOKED_UP = re.compile(r"(?i)emb|(^|[._])(tok|pos|cls|wte|wpe)([._]|$)")
_LABELS = "labels"
_BATCHES = 256
_LARGEST = 1 << 16  # maximum number of labels of one batch; a larger tensor is a mask of pixels
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FACT_COLUMNS = (
    "worker", "mode", "mode_step", "step", "seq", "name", "kind", "origin", "call", "dtype", "shape",
    "status", "reason", "count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "min", "max",
    "mean", "m2", "square_sum", "abs_max",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One tensor of one worker in one mode, first call of each step, in order of steps.

    All arrays have one entry per captured value.

    Attributes:
        rms: Root of the mean square.
        zeros: Share of elements that are zero.
        bad: Number of elements that are NaN or infinite.
        shape: Shape of the first value.
    """

    name: str
    kind: str
    mode: str
    worker: str
    origin: str
    dtype: str
    shape: tuple[int, ...]
    order: int
    steps: Ints
    global_steps: Ints
    count: Floats
    rms: Floats
    mean: Floats
    std: Floats
    least: Floats
    most: Floats
    largest: Floats
    square_sum: Floats
    zeros: Floats
    bad: Floats

    def __len__(self) -> int:
        return int(self.steps.size)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype.startswith(("F", "BF"))

    @property
    def is_matrix(self) -> bool:
        """Whether the tensor has two axes or more."""
        return len(self.shape) >= 2

    @property
    def fan_in(self) -> int:
        """Number of inputs of one unit of a weight."""
        return int(np.prod(self.shape[1:])) if len(self.shape) > 1 else 1

    def until(self, step: int) -> npt.NDArray[np.bool_]:
        """Mask of the values of the steps before `step`."""
        found: npt.NDArray[np.bool_] = self.steps < step
        return found


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The data of a run that the signs use.

    Attributes:
        histories: (mode, name) -> values of the first worker.
        absent: (mode, name) -> reason -> number of steps at which the tensor had no value.
        ranks: (mode, name) -> histories of all workers.
        notes: Trial.notes().
        findings: Rule -> findings, see tdcore.rules.Finding.
        labels: Class -> number of occurrences.
    """

    histories: Mapping[tuple[str, str], History]
    absent: Mapping[tuple[str, str], Mapping[str, int]]
    ranks: Mapping[tuple[str, str], tuple[History, ...]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    findings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    labels: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of(trial: Trial, findings: Mapping[str, tuple[Any, ...]] | None = None) -> Facts:
        """The facts of the newest attempt that the trial reads."""
        histories, absent, ranks = histories_of(trial.stats().select(list(FACT_COLUMNS)))
        return Facts(
            histories=histories,
            absent=absent,
            ranks=ranks,
            notes=trial.notes(),
            findings=findings or {},
            labels=_label_counts(trial),
        )

    def of_kind(self, *kinds: str, mode: str | None = None) -> Iterator[History]:
        """Tensors of these kinds in one mode (default: the training's), in order of first appearance."""
        for history in self.histories.values():
            if history.kind in kinds and history.mode == (mode or self.training):
                yield history

    def get(self, name: str, mode: str | None = None) -> History | None:
        """Return the history of a tensor in one mode (default: the training's), or None if there is none."""
        return self.histories.get((mode or self.training, name))

    @cached_property
    def training(self) -> str:
        """The mode in which gradients were captured most."""
        counts: dict[str, int] = {}
        for history in self.histories.values():
            if history.kind == "gradient":
                counts[history.mode] = counts.get(history.mode, 0) + len(history)
        for (mode, name), reasons in self.absent.items():
            if name.startswith("gradient/"):
                counts[mode] = counts.get(mode, 0) + sum(reasons.values())
        return max(counts, key=lambda mode: (counts[mode], mode == "TRAIN")) if counts else "TRAIN"

    @cached_property
    def losses(self) -> list[History]:
        """Scalar losses of the training; the loss with the most values is first."""
        found = [one for one in self.of_kind("loss") if one.count.size and one.count.max() == 1]
        return sorted(found, key=lambda one: -len(one))

    @cached_property
    def matrices(self) -> list[History]:
        """Weights with two axes or more, without those of embeddings, whose rows are looked up."""
        embeddings = set(self._looked_up)
        return [
            one
            for one in self.of_kind("weight")
            if one.is_matrix
            and one.is_float
            and len(one)
            and one.fan_in > 1
            and "weight" in one.name.rpartition(".")[2]
            and self.module_of(one.name) not in embeddings
            and not _LOOKED_UP.search(one.name)
        ]

    @cached_property
    def gradients(self) -> list[History]:
        """Gradients of parameters, in order of registration."""
        return [one for one in self.of_kind("gradient") if len(one)]

    @cached_property
    def inputs(self) -> list[History]:
        """Inputs of the model, that is, of the root module."""
        found = [
            one for one in self.of_kind("input") if self.root and one.name.startswith(f"{self.root}_input")
        ]
        return found or [one for one in self.of_kind("input") if one.order == 0]

    @cached_property
    def outputs(self) -> list[History]:
        """Outputs of modules in order of execution."""
        return sorted(self.of_kind("output"), key=lambda one: one.order)

    @cached_property
    def roots(self) -> list[str]:
        """Names of the models, the longest first. The name of a model begins the names of its parameters."""
        names = dict.fromkeys(name for _, name in (*self.histories, *self.absent))
        parameters = [name.removeprefix("gradient/") for name in names if name.startswith("gradient/")]
        outputs = [name.rpartition("_output_")[0] for name in names if "_output_" in name]
        inputs = [name.rpartition("_input_")[0] for name in names if "_input_" in name]
        found = [
            one
            for one in dict.fromkeys((*outputs, *inputs))
            if one and "." not in one and any(name.startswith(f"{one}_") for name in parameters)
        ]
        if not found:
            found = list(dict.fromkeys(name.split("_", 1)[0] for name in parameters if "_" in name))
        return sorted(found, key=len, reverse=True)

    @property
    def root(self) -> str:
        """The name of the first model; "" if it is unknown."""
        return self.roots[-1] if self.roots else ""

    def module_of(self, name: str) -> str:
        """The module of a parameter or its gradient: "gradient/Net_layers.0.weight" is of "layers.0"."""
        bare = name.removeprefix("gradient/")
        for root in self.roots:
            if bare.startswith(f"{root}_"):
                path = bare[len(root) + 1 :].rpartition(".")[0]
                return path if root == self.root else f"{root}.{path}"
        return bare.split("_", 1)[-1].rpartition(".")[0]

    def noted(self, heading: str) -> dict[str, str]:
        """A note of the hook as a mapping of names to texts; {} if there is no such mapping."""
        found = self.notes.get(heading)
        if isinstance(found, dict):
            return {str(name): str(text) for name, text in found.items()}
        return {str(name): "" for name in found} if isinstance(found, list) else {}

    def loss_inputs(self) -> Iterator[tuple[History, History | None]]:
        """The pairs (outputs, targets) with which loss modules were called."""
        names = {one.name.rsplit("_output_", 1)[0] for one in self.of_kind("loss")}
        names |= {
            one.name.removesuffix("_input_0")
            for one in self.of_kind("input")
            if one.name.endswith("Loss_input_0")
        }
        for name in sorted(names):
            outputs = self.get(f"{name}_input_0")
            if outputs is not None and len(outputs):
                yield outputs, self.get(f"{name}_input_1")

    def parameter_of(self, gradient: History) -> History | None:
        """The weight or bias that a gradient belongs to."""
        return self.get(gradient.name.removeprefix("gradient/"))

    def gradient_of(self, weight: History) -> History | None:
        """The gradient of a weight."""
        return self.get(f"gradient/{weight.name}")

    def hyperparameter(self, name: str) -> History | None:
        """A hyperparameter such as "lr"; None if the run has several learning rates.

        Groups with the same rates count as one.
        """
        groups: dict[str, dict[str, History]] = {}
        for history in self.of_kind("hyperparameter"):
            group, _, key = history.name.rpartition("/")
            if len(history):
                groups.setdefault(group, {})[key] = history
        rates = [group["lr"].mean for group in groups.values() if "lr" in group]
        if not groups or not all(np.array_equal(rates[0], one) for one in rates[1:]):
            return None
        if len({frozenset(group) for group in groups.values()}) > 1:
            return None  # optimizers of different kinds
        return next(iter(groups.values())).get(name)

    @cached_property
    def first_step(self) -> int:
        """The first step of the training that was recorded."""
        starts = [
            int(one.steps[0]) for one in self.histories.values() if one.mode == self.training and len(one)
        ]
        return min(starts, default=0)

    @property
    def _looked_up(self) -> Iterator[str]:
        for history in self.of_kind("output"):
            if "Embedding" in history.origin:
                yield history.name.rsplit("_output_", 1)[0]


def _label_counts(trial: Trial) -> dict[int, int]:
    """Number of occurrences of each class in the saved values of the labels of the training."""
    if not trial.has_tensor(_LABELS):
        return {}
    labels = trial.tensor(_LABELS)
    counts: Counter[int] = Counter()
    for step in labels.steps(ModeKeys.TRAIN)[:_BATCHES]:
        try:
            values = np.asarray(labels.value(step, mode=ModeKeys.TRAIN))
        except RunError:
            return {}
        if values.size > _LARGEST or values.dtype.kind not in "iub":
            return {}
        classes, number = np.unique(values, return_counts=True)
        counts.update(dict(zip(map(int, classes), map(int, number), strict=True)))
    return dict(counts)


def histories_of(
    table: pa.Table,
) -> tuple[
    dict[tuple[str, str], History],
    dict[tuple[str, str], dict[str, int]],
    dict[tuple[str, str], tuple[History, ...]],
]:
    """(histories, absent, ranks) of Facts, from rows of the index with FACT_COLUMNS."""
    columns = {name: table.column(name) for name in FACT_COLUMNS}
    text = {name: np.asarray(columns[name].to_pylist(), dtype=object) for name in ("worker", "mode", "name")}
    status = np.asarray(columns["status"].to_pylist(), dtype=object)
    calls = columns["call"].to_numpy()
    number = {name: _numbers(columns[name]) for name in (*FACT_COLUMNS[13:], "mode_step", "step", "seq")}
    keys = np.array([f"{w}\0{m}\0{n}" for w, m, n in zip(*text.values(), strict=True)], dtype=object)
    order = np.lexsort((number["step"], keys.astype(str))) if keys.size else np.empty(0, dtype=np.int64)
    starts: Any = np.flatnonzero(np.r_[True, keys[order][1:] != keys[order][:-1]]) if keys.size else []
    found: dict[tuple[str, str], list[History]] = {}
    absent: dict[tuple[str, str], dict[str, int]] = {}
    first_seq: dict[tuple[str, str], tuple[float, float]] = {}  # of absent tensors
    for rows in np.split(order, starts[1:]) if keys.size else []:
        place = (text["mode"][rows[0]], text["name"][rows[0]])
        ok = np.isin(status[rows], ("ok", "lost")) & (calls[rows] == 0)
        reasons = columns["reason"].take(rows[~ok & (status[rows] == "absent")]).to_pylist()
        counts = dict(Counter(map(str, reasons)))
        if sum(counts.values()) > sum(absent.get(place, {}).values()):
            absent[place] = counts  # of the worker with the most steps
            first_seq[place] = (number["step"][rows[0]], number["seq"][rows[0]])
        counted = rows[ok & ~np.isnan(number["count"][rows])]
        if counted.size:
            found.setdefault(place, []).append(_history(columns, number, counted, text["worker"][rows[0]]))
    for histories in found.values():
        histories.sort(key=lambda one: one.worker)
    by_seq = sorted(found, key=lambda place: (found[place][0].steps[0], found[place][0].order))
    absent = {place: absent[place] for place in sorted(absent, key=first_seq.__getitem__)}
    return {place: found[place][0] for place in by_seq}, absent, {p: tuple(found[p]) for p in by_seq}


def _history(columns: dict[str, Any], number: dict[str, Floats], rows: Ints, worker: str) -> History:
    first = int(rows[0])
    values = {name: number[name][rows] for name in FACT_COLUMNS[13:]}
    bad = values["nan_count"] + values["pos_inf_count"] + values["neg_inf_count"]
    finite = np.maximum(values["count"] - bad, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        return History(
            name=columns["name"][first].as_py(),
            kind=columns["kind"][first].as_py(),
            mode=columns["mode"][first].as_py(),
            worker=worker,
            origin=columns["origin"][first].as_py() or "",
            dtype=columns["dtype"][first].as_py() or "",
            shape=tuple(columns["shape"][first].as_py() or ()),
            order=int(number["seq"][first]),
            steps=number["mode_step"][rows].astype(np.int64),
            global_steps=number["step"][rows].astype(np.int64),
            count=values["count"],
            rms=np.sqrt(values["square_sum"] / finite),
            mean=values["mean"],
            std=np.sqrt(np.maximum(values["m2"], 0) / finite),
            least=values["min"],
            most=values["max"],
            largest=values["abs_max"],
            square_sum=values["square_sum"],
            zeros=values["zero_count"] / np.maximum(values["count"], 1),
            bad=bad,
        )


def _numbers(column: pa.ChunkedArray) -> Floats:
    import pyarrow as pa

    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
