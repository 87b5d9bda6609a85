"""record: the answers that a report contains, as many as fit into a limited size.

The most useful answers come first: the overview, the rules, the default heat map, the heat maps of all kinds,
40 tensors (those with findings, then those whose magnitude changed most) with their newest values, the heat
maps of all statistics, and further tensors. The thread of the run.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from tdcore.errors import RunError
from tdcore.text.short_repr import how_many
from tdcore.view.answers import answer, run_line
from tdcore.view.answers.buckets import reduced
from tdcore.view.answers.frame import load_frame
from tdcore.view.answers.statistics import COMMON, UPDATE_RATIO

if TYPE_CHECKING:
    from tdcore.view.answers import OpenRun

__all__ = ["LIMIT_BYTES", "record"]

LIMIT_BYTES = 1_600_000
"""Maximum size of the compressed answers."""

_FIRST_TENSORS = 40  # before further heat maps
_MOST_TENSORS = 400
_CELLS = 24_000  # of one heat map
_COLUMNS = 240
_VALUE_CELLS = 64
_STATISTICS = ("abs_mean", "l2", "std", "zero_share", "bad_share", "abs_max", "mean")
_FOR_HEAT_MAPS = {"weight": (UPDATE_RATIO, *_STATISTICS), "bias": (UPDATE_RATIO, *_STATISTICS)}
_LEFT_OUT = frozenset({"from", "to", "since", "until", "columns", "pattern"})
_UNRESERVED = "!'()*"  # as in encodeURIComponent of JavaScript

Request = tuple[str, dict[str, str], dict[str, str]]  # name, parameters of the key, further parameters


def record(run: OpenRun, *, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """`Recorded` of the contract: the answers by their keys.

    A note in the overview states which tensors the report contains.

    Args:
        run: The run, with its verdicts.
        limit_bytes: Maximum size of the compressed answers. The overview, the rules, the default heat map and
            the list of tensors are always recorded.
    """
    book = _Book(run, limit_bytes)
    book.answers["runs?"] = {"folder": "", "runs": [run_line(run)], "can_write": False}
    for name in ("overview", "rules", "layers", "tensors"):
        book.add(name, {}, {"columns": str(_columns(run))} if name == "layers" else {}, always=True)
    for name in ("time", "ranks", "compare", "partings", "predictions"):
        book.add(name, {}, {} if name in ("partings", "predictions") else {"columns": str(_COLUMNS)})
    for kind, mode in _heat_maps(run):
        book.add("layers", {"kind": kind, "mode": mode}, {"columns": str(_columns(run, kind))})
    chosen = _chosen_tensors(run)
    shown = sum(_add_tensor(book, run, name) for name in chosen[:_FIRST_TENSORS])
    for statistic in (UPDATE_RATIO, *_STATISTICS):
        for kind, mode in _heat_maps(run):
            if statistic in _FOR_HEAT_MAPS.get(kind, _STATISTICS):
                wanted = {"statistic": statistic, "kind": kind, "mode": mode}
                book.add("layers", wanted, {"columns": str(_columns(run, kind))})
    for name in chosen[_FIRST_TENSORS:]:
        if not _add_tensor(book, run, name):
            break
        shown += 1
    text = _contents(run, shown)
    overview = next(found for key, found in book.answers.items() if key.startswith("overview?"))
    overview["notices"].append({"level": "note", "text": text})
    return book.answers


class _Book:
    """Recorded answers, and the size that is left."""

    def __init__(self, run: OpenRun, limit_bytes: int) -> None:
        self.answers: dict[str, Any] = {}
        self._run = run
        self._left = limit_bytes

    def add(
        self, name: str, parameters: Mapping[str, str], more: Mapping[str, str], *, always: bool = False
    ) -> dict[str, Any] | None:
        """Record an answer under the key of its parameters and choices; return None if it does not fit.

        Args:
            name: Name of the request.
            parameters: Parameters of the key.
            more: Parameters that are not part of keys.
            always: Record the answer even if it does not fit.
        """
        if self._left <= 0 and not always:
            return None
        of_runs = "runs" if name in ("compare", "partings") else "run"
        try:
            found = answer(self._run, name, {**parameters, **more})
        except RunError:  # a damaged file: the page shows what can be read
            return None
        size = len(zlib.compress(json.dumps(found).encode(), 1))
        if size > self._left and not always:
            return None
        self._left -= size
        key = _key(name, {**parameters, of_runs: self._run.id, **_choices(name, found)})
        self.answers.setdefault(key, found)
        return found


def _choices(name: str, found: Mapping[str, Any]) -> dict[str, str]:
    """The values that the answer has chosen for parameters of its request."""
    mode = {"mode": found["mode"]} if "mode" in found and found["modes"] else {}
    if name == "layers":
        return {**mode, "statistic": found["statistic"]["id"], "kind": found["kind"]}
    if name in ("ranks", "compare"):
        tensor = found["tensor" if name == "ranks" else "name"]
        return {**mode, "statistic": found["statistic"]["id"], "name": tensor}
    if name == "tensor":
        return {**mode, "name": found["tensor"]["name"]}
    if name == "histogram":
        return {**mode, "name": found["name"]}
    if name == "value":
        return {"mode": found["at"]["mode"], "name": found["name"], "step": str(found["at"]["mode_step"])}
    return {"worker": found["worker"]} if name == "time" else mode


def _key(name: str, parameters: Mapping[str, str]) -> str:
    """Key of a request, as in web/src/keys.ts."""
    kept = sorted((key, text) for key, text in parameters.items() if text and key not in _LEFT_OUT)
    return f"{name}?" + "&".join(f"{key}={quote(text, safe=_UNRESERVED)}" for key, text in kept)


def _heat_maps(run: OpenRun) -> Iterator[tuple[str, str]]:
    """(kind, mode) of each heat map."""
    for kind in run.catalog.kinds:
        for mode in run.catalog.modes_of(run.catalog.of_kind(kind)):
            yield kind, mode


def _columns(run: OpenRun, kind: str | None = None) -> int:
    """Number of columns of a heat map; fewer for many tensors. kind: None: the largest kind."""
    kinds = run.catalog.kinds if kind is None else [kind]
    rows = max((len(run.catalog.of_kind(each)) for each in kinds), default=1)
    return max(24, min(_COLUMNS, _CELLS // max(rows, 1)))


def _add_tensor(book: _Book, run: OpenRun, name: str) -> bool:
    """Record the pages of a tensor in all of its modes, with its newest values; return whether they fit."""
    added = False
    for mode in run.catalog.modes_of([name]):
        page = book.add("tensor", {"name": name, "mode": mode}, {"columns": str(_COLUMNS // 2)})
        added = added or page is not None
        if page is not None:
            book.add("histogram", {"name": name, "mode": mode}, {"columns": str(_COLUMNS // 2)})
        if page is not None and page["saved_steps"]:
            step = str(page["saved_steps"][-1]["mode_step"])
            book.add("value", {"name": name, "mode": mode, "step": step}, {"columns": str(_VALUE_CELLS)})
    return added


def _chosen_tensors(run: OpenRun) -> list[str]:
    """At most 400 tensors: those with findings, then those whose magnitude changed most."""
    tensors = run.catalog.tensors
    found = dict.fromkeys(each.tensor for each in run.findings if each.tensor in tensors)
    if len(found) < _MOST_TENSORS:
        changes = [(change, name) for name, change in _changes(run).items() if name not in found]
        found.update(dict.fromkeys(name for _, name in sorted(changes, key=lambda each: -each[0])))
    return list(found)[:_MOST_TENSORS]


def _changes(run: OpenRun) -> dict[str, float]:
    """The ratio of the largest and the smallest mean magnitude of each tensor, as a logarithm."""
    found: dict[str, float] = {}
    names = list(run.catalog.tensors)
    statistic = COMMON["abs_mean"]
    for mode in run.catalog.modes_of(names):
        some = [name for name in names if mode in run.catalog.tensors[name].modes]
        frame = load_frame(run.trial, some, mode=mode, worker="", columns=statistic.columns)
        values = frame.values(statistic)
        range_of = reduced(np.where(values > 0, values, np.nan), frame.tensor, len(some))
        with np.errstate(invalid="ignore"):
            change = np.nan_to_num(np.log(range_of.max) - np.log(range_of.min), nan=-1.0)
        for name, each in zip(some, change.tolist(), strict=True):
            found[name] = max(each, found.get(name, -1.0))
    return found


def _contents(run: OpenRun, shown: int) -> str:
    """A sentence about the tensors that the report contains."""
    every = len(run.catalog.tensors)
    if shown == every:
        which = f"the pages of all {how_many(every, 'tensor')}"
    else:
        which = (
            f"the pages of {shown:,} of {how_many(every, 'tensor')}: those with findings, then those whose "
        )
        which += "magnitude changed most"
    return (
        f"this report contains {which}, with the newest values of each tensor; `tdcore view` shows all data"
    )
