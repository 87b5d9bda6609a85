"""LoopThread: one thread that runs an asyncio loop, for callers that know nothing of asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

__all__ = ["LoopThread"]

T = TypeVar("T")


class LoopThread:
    """A daemon thread with an event loop; starts with the first submit(). Any thread, except after a fork.

    close() cancels what is running, waits for it to end, and stops the thread.
    """

    def __init__(self, name: str = "tdcore-s3") -> None:
        self._name = name
        self._lock = threading.Lock()  # guards the three below
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` in the loop. Cancelling the future cancels it.

        RuntimeError after close().
        """
        with self._lock:
            if self._closed:
                coroutine.close()
                raise RuntimeError("this S3 connection is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` in the loop and wait for its result. Not from the loop's own thread."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Cancel what is running, run `last`, stop the thread. Nothing happens the second time."""
        with self._lock:
            first, self._closed = not self._closed, True
        if not first or self._loop is None or self._thread is None:
            if last is not None:
                last.close()
            return
        try:
            asyncio.run_coroutine_threadsafe(_end(last), self._loop).result()
        except CancelledError:
            pass
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _end(last: Coroutine[Any, Any, None] | None) -> None:
    running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    if last is not None:
        await last
