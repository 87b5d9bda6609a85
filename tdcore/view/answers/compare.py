"""Answer `compare`: one tensor of several runs, and their different settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError
from tdcore.modes import ModeKeys
from tdcore.text.short_repr import cut
from tdcore.view.answers.buckets import points
from tdcore.view.answers.frame import load_frame
from tdcore.view.answers.runs import run_line
from tdcore.view.answers.scope import preferred
from tdcore.view.answers.statistics import COMMON

if TYPE_CHECKING:
    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["PARAMETERS", "answer"]

PARAMETERS = ("name", "statistic", "mode", "from", "to", "columns")

_COLUMNS = 800
_FIRST_KINDS = ("loss", "metric", "scalar", "gradient", "weight")
_SINGLE_NUMBERS = frozenset({"loss", "metric", "scalar", "hyperparameter"})
_MOST_RUNS = 8
_MOST_DIFFERENCES = 200
_LONGEST = 200  # characters of a value of the configuration
_NOT_SETTINGS = frozenset({"attempt", "started_ns", "pid", "workers", "job"})


def answer(runs: Sequence[OpenRun], parameters: Parameters) -> dict[str, Any]:
    """`Compare` of the contract. The first run is the one that the others are compared with."""
    if not 1 <= len(runs) <= _MOST_RUNS:
        raise ConfigError(f"'compare' shows 1 to {_MOST_RUNS} runs, got {len(runs)}")
    catalogs = [run.catalog for run in runs]
    first = catalogs[0].tensors
    names = [name for name in first if all(name in each.tensors for each in catalogs)]
    kind = preferred([first[name].kind for name in names], _FIRST_KINDS)
    default = next((name for name in names if kind in (None, first[name].kind)), "")
    name = parameters.choice("name", names, default)
    single = name != "" and first[name].kind in _SINGLE_NUMBERS
    statistic = COMMON[parameters.choice("statistic", list(COMMON), "mean" if single else "l2")]
    of_any = {mode for each in catalogs if name for mode in each.tensors[name].modes}
    modes = [mode.name for mode in ModeKeys if mode.name in of_any]
    mode = parameters.choice("mode", modes) or "TRAIN"
    columns, steps = parameters.columns(_COLUMNS), parameters.steps()
    return {
        "runs": [run_line(run) for run in runs],
        "name": name,
        "names": names,
        "statistic": statistic.to_json(),
        "statistics": [each.to_json() for each in COMMON.values()],
        "mode": mode,
        "modes": modes,
        "curves": [_curve(run, name, mode, statistic, steps, columns) for run in runs if name],
        "differences": list(_differences(runs)),
    }


def _curve(run: OpenRun, name: str, mode: str, statistic: Any, steps: Any, columns: int) -> dict[str, Any]:
    frame = load_frame(run.trial, [name], mode=mode, worker="", columns=statistic.columns, steps=steps)
    values = frame.values(statistic)
    there = frame.counted
    return {
        "run": run.id,
        "points": points(frame.steps[there], values[there], columns, bad=frame.bad[there]),
    }


def _differences(runs: Sequence[OpenRun]) -> Iterator[dict[str, Any]]:
    """Settings in run.json that differ between the newest attempts of the runs."""
    flat = [dict(_flattened(_document(run))) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    number = 0
    for key in keys:
        values = [each.get(key, "") for each in flat]
        if len(set(values)) > 1:
            number += 1
            if number <= _MOST_DIFFERENCES:
                yield {"key": key, "values": values}


def _document(run: OpenRun) -> Mapping[str, Any]:
    info = run.trial.attempt_info()
    return (
        {}
        if info is None
        else {name: value for name, value in info.document.items() if name not in _NOT_SETTINGS}
    )


def _flattened(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(path, text) of each plain value. parse_json has limited the depth."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _flattened(each, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(each, (Mapping, list)) for each in value):
        for at, each in enumerate(value):
            yield from _flattened(each, f"{key}[{at}]")
    elif value is not None:
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield cut(key, _LONGEST), cut(text, _LONGEST)
