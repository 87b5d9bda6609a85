"""Plots: the pictures of one run, `Trial.plot`. Threads: those of the Trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tdcore.trial import Trial

__all__ = ["Plots"]


class Plots:
    """Pictures of a run. Each method returns a new matplotlib figure.

    Steps on axes are steps of the mode, as the training loop counts them. A picture without data contains the
    reason. A cross marks a value that is NaN or infinite. Without matplotlib, methods raise ConfigError.
    """

    __slots__ = ("_trial",)

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def __repr__(self) -> str:
        methods = ", ".join(f".{name}()" for name in vars(type(self)) if not name.startswith("_"))
        return f"<Plots of run {self._trial.name!r}: {methods}>"

    def layers(
        self,
        pattern: str = "^gradient/",
        *,
        statistic: str = "abs_mean",
        mode: str | None = None,
        worker: str = "",
    ) -> Figure:
        """Heat map of one statistic: tensors in the order of the model by steps.

        Cells with NaN and infinite elements have their own colours, findings are outlined, and the first
        tensor with NaN or infinite elements is marked.

        Args:
            pattern: A regular expression that is searched in the names of tensors.
            statistic: "abs_mean", "l2", "rms", "std", "abs_max", "mean", "min", "max", "zero_share",
                "bad_share", "bad_count" or "update_ratio".
            mode: Name of the mode. None: the first mode of the tensors, TRAIN if it is one of them.
            worker: Name of a worker. "": all workers, whose parts of a tensor are joined.

        Raises:
            ConfigError: The pattern, the statistic or the mode is not valid.
            InvalidWorker: The run has no such worker.
        """
        from tdcore.plot.layers import layers

        with _at_one_time(self._trial):
            return layers(self._trial, pattern, statistic, mode, worker)

    def loss(self) -> Figure:
        """Losses over the steps, with one panel for each mode."""
        from tdcore.plot.loss import loss

        with _at_one_time(self._trial):
            return loss(self._trial)

    def histogram(self, name: str, *, mode: str | None = None, worker: str = "") -> Figure:
        """Stored histogram of a tensor over the steps: share of the elements by magnitude, in powers of two.

        Args:
            name: Name of the tensor.
            mode, worker: See layers().

        Raises:
            TensorUnavailable: The run has no such tensor.
            ConfigError: The tensor has no rows in this mode.
            InvalidWorker: The run has no such worker.
        """
        from tdcore.plot.histogram import histogram

        with _at_one_time(self._trial):
            return histogram(self._trial, name, mode, worker)

    def ranks(self, name: str, *, column: str = "l2", mode: str | None = None) -> Figure:
        """One statistic of a tensor on all workers. Workers that differ from the others are highlighted.

        A worker is highlighted if at least three workers have the same part of the tensor, and its largest
        deviation from their median is at least 6 estimated standard deviations.

        Args:
            name: Name of the tensor.
            column: A numeric column of Trial.stats().
            mode: See layers().

        Raises:
            TensorUnavailable: The run has no such tensor.
            ConfigError: The column is unknown, or the tensor has no rows in this mode.
        """
        from tdcore.plot.ranks import ranks

        with _at_one_time(self._trial):
            return ranks(self._trial, name, column, mode)

    def compare(self, other: Trial, name: str | None = None, *, statistic: str | None = None) -> Figure:
        """One tensor of two runs, aligned by the steps of each mode. A line marks the first different step.

        Args:
            other: The other run.
            name: Name of the tensor. None: the first loss that both runs have.
            statistic: See layers(). None: "mean" for a single number such as a loss, else "l2".

        Raises:
            TensorUnavailable: One of the runs has no such tensor.
            ConfigError: The statistic is unknown.
        """
        from tdcore.plot.compare import compare

        with _at_one_time(self._trial), _at_one_time(other):
            return compare(self._trial, other, name, statistic)

    def time(self, *, worker: str | None = None) -> Figure:
        """Duration of the steps by phase (data, forward, backward, optimizer, ...), for each mode.

        worker: Name of a worker. None: the first worker.

        Raises:
            InvalidWorker: The run has no times of this worker.
        """
        from tdcore.plot.time import time

        with _at_one_time(self._trial):
            return time(self._trial, worker)


@contextmanager
def _at_one_time(trial: Trial) -> Iterator[None]:
    """Within the block, the run is not read again, so that all parts of a picture show the same rows."""
    was = trial.frozen
    trial.workers()  # reads new rows
    trial.frozen = True
    try:
        yield
    finally:
        trial.frozen = was
