"""Metrics of runs for Prometheus: losses, steps, drops, findings, attempts.

The values are those of the newest data at each request. They are gauges, because a run that is removed or
continues makes a number smaller. Threads: see OpenRun.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric

from tdcore.modes import ModeKeys
from tdcore.text.quoting import without_surrogates
from tdcore.view.answers.opened import OpenRun, frozen

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["Sample", "families", "samples"]

Sample = tuple[str, dict[str, str], float]  # key of _GAUGES, labels without the run, value

_NEWEST_STEPS = 256  # steps of each mode in which the newest losses are searched
_RATE_STEPS = 64
_MAX_LOSSES = 200
_INFINITE = ("pos_inf_count", "neg_inf_count")
_GAUGES = {
    "run_running": ("1 while the run is being written, else 0.", ()),
    "attempts": ("Number of attempts of the run.", ()),
    "last_step": ("Newest saved step of the mode.", ("mode",)),
    "steps_per_second": ("Steps per second between the newest saved steps of the mode.", ("mode",)),
    "loss": (
        "Newest value of a loss; the mean of its finite elements if it has several.",
        ("mode", "worker", "tensor"),
    ),
    "dropped_tensors": (
        "Tensors that were not stored as requested, in attempts that have ended.",
        ("reason",),
    ),
    "missing_items": ("Number of pieces of data that are missing in the run.", ()),
    "findings": ("Number of findings of a rule.", ("rule", "code")),
}


def samples(run: OpenRun) -> list[Sample]:
    """The samples of one run. The last sample has the labels of the metric `run_info`."""
    with frozen(run):
        trial = run.trial
        trial.refresh()
        return [*_of_run(run, trial), *_of_modes(trial), _about(run, trial)]


def families(runs: Iterable[tuple[str, list[Sample]]]) -> list[Metric]:
    """The metrics of several runs: (name of the run, samples) pairs."""
    info = InfoMetricFamily("tdcore_run", "The run, its id, framework and status.", labels=["run"])
    gauges = {
        name: GaugeMetricFamily(f"tdcore_{name}", text, labels=["run", *labels])
        for name, (text, labels) in _GAUGES.items()
    }
    for run, found in runs:
        for name, labels, value in found:
            if name == "run_info":
                info.add_metric([without_surrogates(run)], labels)
            else:
                values = [without_surrogates(labels[label]) for label in _GAUGES[name][1]]
                gauges[name].add_metric([without_surrogates(run), *values], value)
    return [info, *gauges.values()]


def _of_run(run: OpenRun, trial: Trial) -> Iterator[Sample]:
    yield "run_running", {}, float(trial.status == "running")
    yield "attempts", {}, float(len(trial.attempts))
    yield "missing_items", {}, float(len(trial.missing()))
    drops: Counter[str] = Counter()
    for end in trial.ends().values():
        drops.update({reason: drop.tensors for reason, drop in end.drops.items()})
    for reason, tensors in sorted(drops.items()):
        yield "dropped_tensors", {"reason": reason}, float(tensors)
    findings = Counter((each.rule, each.code) for each in run.findings)
    for (rule, code), count in sorted(findings.items()):
        yield "findings", {"rule": rule, "code": code}, float(count)


def _of_modes(trial: Trial) -> Iterator[Sample]:
    for mode in trial.modes():
        if mode is ModeKeys.GLOBAL:
            continue
        steps = trial.steps(mode, show_incomplete_steps=True)
        labels = {"mode": mode.name}
        yield "last_step", labels, float(steps[-1])
        newest = steps[-_NEWEST_STEPS:]
        losses = trial.stats(
            steps=newest, mode=mode, kinds="loss", columns=["name", "worker", "count", "mean", *_INFINITE]
        )
        last: dict[tuple[str, str], float] = {}
        for row in losses.filter(losses["count"].is_valid()).to_pylist():
            last[row["name"], row["worker"]] = _value(row)
        for (tensor, worker), value in list(last.items())[:_MAX_LOSSES]:
            yield "loss", {**labels, "tensor": tensor, "worker": worker}, float(value)
        times = trial.rows(steps=newest[-_RATE_STEPS:], mode=mode, columns=["mode_step", "time_ns"])
        number, time_ns = (times[name].to_numpy() for name in ("mode_step", "time_ns"))
        if len(number):
            first, end = int(np.argmin(time_ns)), int(np.argmax(time_ns))
            seconds = (int(time_ns[end]) - int(time_ns[first])) / 1e9
            if seconds > 0 and number[end] > number[first]:
                yield "steps_per_second", labels, float(number[end] - number[first]) / seconds


def _value(row: Mapping[str, Any]) -> float:
    """The only element, also if it is infinite, or the mean."""
    if row["count"] == 1 and (row["pos_inf_count"] or row["neg_inf_count"]):
        return math.inf if row["pos_inf_count"] else -math.inf
    return float(row["mean"])


def _about(run: OpenRun, trial: Trial) -> Sample:
    entry = trial.attempt_info()
    framework = str(entry.document.get("framework") or "") if entry is not None else ""
    about = {"run_id": trial.run_id, "path": run.shown_path, "framework": framework, "status": trial.status}
    return "run_info", {name: without_surrogates(text) for name, text in about.items()}, 1.0
