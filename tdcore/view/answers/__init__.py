"""Answers to the requests of the pages, as plain values for JSON; web/src/contract.ts has their types.

    runs = RunSet("runs")
    answer(runs, "layers", {"run": "demo/faulty", "kind": "gradient"})

Each page has one file with a function `answer` and the names of its PARAMETERS. Values of parameters are texts. Each
parameter has a default, so {} is a valid request for each page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError
from tdcore.text.did_you_mean import did_you_mean
from tdcore.text.short_repr import cut
from tdcore.view.answers import layers, overview
from tdcore.view.answers import runs as runs_page
from tdcore.view.answers.opened import Judgement, OpenRun, RunSet, frozen
from tdcore.view.answers.parameters import Parameters

if TYPE_CHECKING:
    Answer = Callable[[OpenRun, Parameters], dict[str, Any]]

__all__ = ["REQUESTS", "Judgement", "OpenRun", "RunSet", "answer"]

_PAGES: dict[str, tuple[tuple[str, ...], Answer]] = {
    "overview": (overview.PARAMETERS, overview.answer),
    "layers": (layers.PARAMETERS, layers.answer),
}

REQUESTS = {"runs": (), **{name: ("run", *known) for name, (known, _) in _PAGES.items()}}
"""Names of the parameters of each request."""


def answer(runs: RunSet, request: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The answer to a request. Call it in one thread at a time.

    Args:
        runs: The runs.
        request: A name in REQUESTS.
        parameters: Texts by name. A missing or empty text is the default.

    Raises:
        ConfigError: The request, or a parameter, does not exist or is invalid.
        RunError, SinkError: The run does not exist or cannot be read.
    """
    if request not in REQUESTS:
        raise ConfigError(
            f"there is no request {cut(request)!r}; there are {', '.join(REQUESTS)}"
            f"{did_you_mean(request, REQUESTS)}"
        )
    given = Parameters(request, parameters, REQUESTS[request])
    if request == "runs":
        return runs_page.answer(runs)
    run = runs.run(given.text("run"))
    with frozen(run):
        return _PAGES[request][1](run, given)
