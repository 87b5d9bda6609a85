"""The application of the view: its page, the answers to the requests of the page, and the events.

An answer is made in the thread of its run, and encoded there, so that no run delays the requests to other
runs. After an error of a run, the answer to requests to this run is {"error": ...}.

Threads: the event loop, except the functions that are passed to ServedRuns.call().
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tdcore.errors import ConfigError, RunNotFound, SinkKeyError, TdcoreError
from tdcore.text.short_repr import cut
from tdcore.view.server.events import Events
from tdcore.view.server.guard import Guard, HostNames
from tdcore.view.server.metrics import Metrics
from tdcore.view.server.pages import PageFile
from tdcore.view.server.requests_to_run import request_capture, request_stop
from tdcore.view.server.served_runs import ServedRuns

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tdcore.view.answers import OpenRun

__all__ = ["ViewApp"]

_log = logging.getLogger("tdcore.view")

_START = os.urandom(6).hex()  # in each ETag, because versions of runs begin again with each start
_MAX_RUNS = 8  # in one comparison
_MAX_BODY = 1 << 20
_KEPT_BYTES = 16 << 20
_PACK_BYTES, _SAMPLE_BYTES, _WORTH_PACKING = 1 << 12, 1 << 16, 0.6
_PRIVATE = {"Cache-Control": "private, no-cache"}  # the browser validates its copy at each use
_WRITES: dict[str, Callable[[OpenRun, Mapping[str, Any]], str]] = {
    "stop": request_stop,
    "capture": request_capture,
}


class ViewApp:
    """The application.

    Args:
        runs: The runs.
        pages: The files of the page.
        can_write: Whether pages may request a stop and a capture.

    Attributes:
        events: The connected pages.
    """

    def __init__(self, runs: ServedRuns, pages: Mapping[str, PageFile], *, can_write: bool) -> None:
        self.events = Events(self._watch, self._rest, runs.current)
        self._runs = runs
        self._pages = pages
        self._can_write = can_write
        self._watching: asyncio.Task[None] | None = None
        self._kept = _Kept(_KEPT_BYTES)
        runs.changed = self.events.publish

    def asgi(self, *, token: str, hosts: HostNames) -> ASGIApp:
        """The application with its guard."""
        routes = [
            Route("/api/runs", _failing_softly(self._list)),
            Route("/api/events", _failing_softly(self._events), methods=["GET"]),
            *(
                Route(f"/api/{name}", _failing_softly(self._writing(write)), methods=["POST"])
                for name, write in _WRITES.items()
            ),
            Route("/api/{request:str}", _failing_softly(self._answer)),
            Route("/metrics", Metrics(self._runs).answer),
            Route("/{name:path}", self._page),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
        return Guard(app, token=token, hosts=hosts)

    async def _page(self, request: Request) -> Response:
        page = self._pages.get(request.path_params["name"] or "index.html")
        if page is None:
            return _failure("there is no such page", 404)
        headers = {"ETag": page.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == page.etag:
            return Response(status_code=304, headers=headers)
        packs = "gzip" in request.headers.get("accept-encoding", "")
        if packs:
            headers["Content-Encoding"] = "gzip"
        content = page.packed if packs else page.content
        return Response(content, media_type=page.media_type, headers=headers)

    async def _list(self, request: Request) -> Response:
        document = {
            "folder": self._runs.place.shown,
            "runs": await self._runs.lines(),
            "can_write": self._can_write,
        }
        packs = "gzip" in request.headers.get("accept-encoding", "")
        content, encoding = await asyncio.to_thread(_encoded, document, packs)
        return _json(content, encoding, {"Cache-Control": "no-store"})

    async def _answer(self, request: Request) -> Response:
        from tdcore.view.answers import REQUESTS

        name = request.path_params["request"]
        if name not in REQUESTS:
            return _failure(f"there is no request {cut(name)!r}", 404)
        ids = await self._ids(request)
        packs = "gzip" in request.headers.get("accept-encoding", "")
        versions = await self._runs.versions(ids)
        etag = f'W/"{_START}-{"-".join(map(str, versions))}-{int(packs)}"'
        headers = {**_PRIVATE, "ETag": etag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        made = self._made(name, ids, dict(request.query_params), packs, versions)
        content, encoding = await _unless_gone(request, made)
        return _json(content, encoding, headers)

    async def _made(
        self, name: str, ids: list[str], parameters: Mapping[str, str], packs: bool, versions: tuple[int, ...]
    ) -> tuple[bytes, str]:
        """An encoded answer. The newest answers are kept until their runs change."""
        from tdcore.view.answers import REQUESTS, answer

        def make(runs: list[OpenRun]) -> tuple[bytes, str]:
            made = self._kept.get(key)  # an equal request was before this one in the queue of the run
            if made is None:
                found = runs if "runs" in REQUESTS[name] else runs[0]
                made = _encoded(answer(found, name, parameters), packs)
                self._kept.put(key, made)
            return made

        wanted = sorted((key, text) for key, text in parameters.items() if key not in ("run", "runs"))
        key = (name, tuple(ids), versions, tuple(wanted), packs)
        kept = self._kept.get(key)
        return kept if kept is not None else await self._runs.call(ids, make)

    async def prepare(self) -> None:
        """Open the run that the first page will show, and make the answer that this page will request."""
        try:
            run_id = await self._runs.only_id()
            if run_id is not None:
                versions = await self._runs.versions([run_id])
                await self._made("overview", [run_id], {}, True, versions)
        except Exception:  # the page shows the error when it requests the same answer
            _log.debug("the first answer was not prepared", exc_info=True)

    async def _ids(self, request: Request) -> list[str]:
        """The ids of the runs that a request names; the first run if it names none."""
        several = request.query_params.getlist("runs")
        if len(several) == 1:
            several = several[0].split(",")
        ids = list(dict.fromkeys(each for each in [*several, *request.query_params.getlist("run")] if each))
        if len(ids) > _MAX_RUNS:
            raise ConfigError(f"a request names at most {_MAX_RUNS} runs, got {len(ids)}")
        return ids or [await self._runs.first_id()]

    async def _events(self, _: Request) -> Response:
        if self.events.full:
            return _failure("too many pages are open", 400)
        return _EventStream(self.events.stream())

    def _writing(
        self, write: Callable[[OpenRun, Mapping[str, Any]], str]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if not self._can_write:
                return _failure("the view was started with --read-only", 403)
            body = await _body(request)
            run_id = body.get("run")
            if not isinstance(run_id, str) or not run_id:
                raise ConfigError(f"run must be the id of a run, got {cut(repr(run_id))}")
            text = await self._runs.call([run_id], lambda runs: write(runs[0], body))
            return JSONResponse({"text": text}, headers={"Cache-Control": "no-store"})

        return endpoint

    def _watch(self) -> None:
        self._watching = asyncio.create_task(self._runs.watch())

    def _rest(self) -> None:
        if self._watching is not None:
            self._watching.cancel()


class _Kept:
    """The answers that were used last, by a key that contains the versions of their runs.

    limit: maximum number of bytes. Threads: any.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._found: OrderedDict[object, tuple[bytes, str]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object) -> tuple[bytes, str] | None:
        """The answer with this key; None if it is not kept."""
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            return found

    def put(self, key: object, answer: tuple[bytes, str]) -> None:
        """Keep an answer, and forget the answers that were used the longest time ago."""
        with self._lock:
            if key in self._found:
                return
            self._found[key] = answer
            self._bytes += len(answer[0])
            while self._bytes > self._limit:
                self._bytes -= len(self._found.popitem(last=False)[1][0])


class _EventStream(StreamingResponse):
    """A stream of events whose generator ends together with the connection, even if the page reads slowly."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


def _failing_softly(
    endpoint: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint, with the answer {"error": ...} after an exception."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except HTTPException:
            raise
        except (RunNotFound, SinkKeyError) as error:
            return _failure(str(error), 404)
        except TdcoreError as error:
            return _failure(str(error), 400)
        except Exception as error:  # a bug of tdcore, for example in the handling of a damaged run
            _log.warning("tdcore: %s failed: %s: %s", request.url.path[:80], type(error).__name__, error)
            _log.debug("traceback", exc_info=True)
            return _failure(f"the answer cannot be computed, because of {type(error).__name__}: {error}", 400)

    return guarded


async def _unless_gone(request: Request, answer: Awaitable[tuple[bytes, str]]) -> tuple[bytes, str]:
    """The result. If the page disconnects first, a call that has not begun is left out."""
    making = asyncio.ensure_future(answer)
    while not making.done():
        await asyncio.wait({making}, timeout=0.25)
        if not making.done() and await request.is_disconnected():
            making.cancel()
            raise HTTPException(400)
    return await making


async def _body(request: Request) -> Mapping[str, Any]:
    """The JSON object in the body of a request. Raises ConfigError."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ConfigError("the body of the request must be application/json")
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _MAX_BODY:
            raise ConfigError(f"the body of the request has more than {_MAX_BODY:,} bytes")
    try:
        body = json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body of the request is not JSON: {error!s:.80}") from error
    if not isinstance(body, dict):
        raise ConfigError(f"the body of the request is a JSON {type(body).__name__}, expected an object")
    return body


def _encoded(document: Mapping[str, Any], packs: bool) -> tuple[bytes, str]:
    """The document as JSON, and "gzip" if it is compressed. Noise is not compressed."""
    content = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    if not packs or len(content) < _PACK_BYTES:
        return content, ""
    middle = len(content) // 2
    sample = content[middle : middle + _SAMPLE_BYTES]
    if len(gzip.compress(sample, 1)) > _WORTH_PACKING * len(sample):
        return content, ""
    return gzip.compress(content, 1, mtime=0), "gzip"


def _json(content: bytes, encoding: str, headers: Mapping[str, str]) -> Response:
    more = {"Content-Encoding": encoding} if encoding else {}
    return Response(content, media_type="application/json", headers={**headers, **more})


def _failure(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status_code=status, headers={"Cache-Control": "no-store"})


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _failure(str(error.detail), error.status_code)
