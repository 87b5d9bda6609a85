"""Answers to the requests of the pages, as plain values for JSON; web/src/contract.ts has their types.

    run = OpenRun("demo", "runs/demo")
    answer(run, "layers", {"kind": "gradient"})

Each page has one file with a function `answer` and the names of its PARAMETERS. Values of parameters are
texts. Each parameter has a default, so {} is a valid request for each page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError
from tdcore.text.did_you_mean import did_you_mean
from tdcore.text.short_repr import cut
from tdcore.view.answers import (
    compare,
    layers,
    overview,
    parting,
    predictions,
    ranks,
    rules,
    tensor,
    tensors,
    time,
    value,
)
from tdcore.view.answers.opened import Judgement, OpenRun, frozen
from tdcore.view.answers.parameters import Parameters
from tdcore.view.answers.runs import run_line, unreadable

if TYPE_CHECKING:
    Answer = Callable[[OpenRun, Parameters], dict[str, Any]]
    AnswerOfSeveral = Callable[[Sequence[OpenRun], Parameters], dict[str, Any]]

__all__ = ["REQUESTS", "Judgement", "OpenRun", "answer", "run_line", "unreadable"]

_PAGES: dict[str, tuple[tuple[str, ...], Answer]] = {
    "overview": (overview.PARAMETERS, overview.answer),
    "curves": (overview.CURVE_PARAMETERS, overview.visible_curves),
    "layers": (layers.PARAMETERS, layers.answer),
    "tensors": (tensors.PARAMETERS, tensors.answer),
    "tensor": (tensor.PARAMETERS, tensor.answer),
    "histogram": (tensor.PARAMETERS, tensor.histogram),
    "value": (value.PARAMETERS, value.answer),
    "ranks": (ranks.PARAMETERS, ranks.answer),
    "time": (time.PARAMETERS, time.answer),
    "predictions": (predictions.PARAMETERS, predictions.answer),
    "rules": (rules.PARAMETERS, rules.answer),
}
_PAGES_OF_SEVERAL: dict[str, tuple[tuple[str, ...], AnswerOfSeveral]] = {
    "compare": (compare.PARAMETERS, compare.answer),
    "partings": (parting.PARAMETERS, parting.answer),
}

REQUESTS = {
    **{name: ("run", *known) for name, (known, _) in _PAGES.items()},
    **{name: ("runs", *known) for name, (known, _) in _PAGES_OF_SEVERAL.items()},
}
"""Names of the parameters of each request except `runs`, which has none."""


def answer(runs: OpenRun | Sequence[OpenRun], request: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The answer to a request, from the data that the runs have read. Runs belong to one thread at a time.

    Args:
        runs: The run that the parameter `run` names, or the runs that the parameter `runs` names.
        request: A name in REQUESTS.
        parameters: Texts by name. A missing or empty text is the default. `run` and `runs` are not used.

    Raises:
        ConfigError: The request, or a parameter, does not exist or is invalid.
        RunError, SinkError: A run cannot be read.
    """
    given = [runs] if isinstance(runs, OpenRun) else list(runs)
    if request not in REQUESTS:
        raise ConfigError(
            f"there is no request {cut(request)!r}; there are {', '.join(REQUESTS)}"
            f"{did_you_mean(request, REQUESTS)}"
        )
    wanted = Parameters(request, parameters, REQUESTS[request])
    with ExitStack() as stack:
        for run in given:
            stack.enter_context(frozen(run))
        if request in _PAGES_OF_SEVERAL:
            return _PAGES_OF_SEVERAL[request][1](given, wanted)
        if len(given) != 1:
            raise ConfigError(f"{request!r} shows one run, got {len(given)}")
        return _PAGES[request][1](given[0], wanted)
