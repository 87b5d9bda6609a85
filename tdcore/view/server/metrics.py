"""The endpoint /metrics for Prometheus, in the text format of OpenMetrics or the older one of Prometheus.

`?run=ID` selects runs; otherwise the endpoint has the only run, or all runs that are being written. A run that
cannot be read is left out. Threads: the event loop.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response

from tdcore.errors import ConfigError, TdcoreError

if TYPE_CHECKING:
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
        try:
            for run_id in await self._ids(request):
                try:
                    found.append((run_id, await self._runs.call([run_id], lambda runs: samples(runs[0]))))
                except ConfigError:
                    raise
                except TdcoreError as error:  # the other runs are reported
                    _log.debug("tdcore: no metrics of %s: %s", run_id, error)
        except TdcoreError as error:
            return PlainTextResponse(f"{error}\n", status_code=400)
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(_Collected(families(found))), headers={"Content-Type": media_type})

    async def _ids(self, request: Request) -> list[str]:
        named = list(dict.fromkeys(request.query_params.getlist("run")))
        if not named:
            lines = await self._runs.lines()
            named = [each["id"] for each in lines if len(lines) == 1 or each["status"] == "running"]
        return named[:_MAX_RUNS]


class _Collected:
    """A registry of prometheus_client with these metrics."""

    def __init__(self, metrics: list[object]) -> None:
        self._metrics = metrics

    def collect(self) -> list[object]:
        """The metrics."""
        return self._metrics
