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
from tdcore.rules.diagnosis.histories import FACT_COLUMNS, History, histories_of

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["Facts"]

# Names of embeddings, whose rows are looked up.
_LOOKED_UP = re.compile(r"(?i)emb|(^|[._])(tok|pos|cls|wte|wpe)([._]|$)")
_LABELS = "labels"
_BATCHES = 256
_LARGEST = 1 << 16  # maximum number of labels of one batch; a larger tensor is a mask of pixels
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
