"""The endpoint /metrics for Prometheus, in the text format of OpenMetrics or the older one of Prometheus.

`?run=ID` selects runs; otherwise the endpoint has the only run, or all runs that are being written. A run
that cannot be read is left out. Threads: the event loop.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response

from tdcore.errors import TdcoreError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from starlette.requests import Request

    from tdcore.view.answers.metrics import Sample
    from tdcore.view.server.served_runs import ServedRuns

__all__ = ["Metrics"]

_log = logging.getLogger("tdcore.view")
_MAX_RUNS = 16


class Metrics:
    """The endpoint. runs: the runs of the view."""

    def __init__(self, runs: ServedRuns) -> None:
        self._runs = runs

    async def answer(self, request: Request) -> Response:
        """Answer one scrape."""
        if find_spec("prometheus_client") is None:
            text = "/metrics needs prometheus-client; install it with: pip install 'tdcore-capture[view]'\n"
            return PlainTextResponse(text, status_code=501)
        from prometheus_client.exposition import choose_encoder

        from tdcore.view.answers.metrics import families, samples

        found: list[tuple[str, list[Sample]]] = []
        named = list(dict.fromkeys(request.query_params.getlist("run")))
        if len(named) > _MAX_RUNS:
            return PlainTextResponse(f"/metrics has at most {_MAX_RUNS} runs; name fewer\n", status_code=400)
        for run_id in named or await self._running():
            try:
                found.append((run_id, await self._runs.call([run_id], lambda runs: samples(runs[0]))))
            except TdcoreError as error:  # noqa: PERF203 -- the other runs are reported
                if named:
                    return PlainTextResponse(f"{error}\n", status_code=404)
                _log.debug("tdcore: no metrics of %s: %s", run_id, error)
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(_Collected(families(found))), headers={"Content-Type": media_type})

    async def _running(self) -> list[str]:
        """The only run, or the runs that are being written."""
        lines = await self._runs.lines()
        return [each["id"] for each in lines if len(lines) == 1 or each["status"] == "running"][:_MAX_RUNS]


class _Collected:
    """A registry of prometheus_client with these metrics."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        """The metrics."""
        return self._metrics
