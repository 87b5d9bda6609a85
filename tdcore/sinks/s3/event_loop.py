"""LoopThread: a thread that runs an asyncio event loop for synchronous callers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

__all__ = ["LoopClosed", "LoopThread"]

T = TypeVar("T")


class LoopClosed(RuntimeError):  # noqa: N818 -- a state, not a mistake
    """The loop accepts no coroutine: it was closed, or its thread belongs to another process."""


class LoopThread:
    """A daemon thread with an event loop. The first submit() starts it.

    close() cancels all running coroutines, waits until they end, and stops the thread. A forked child has no
    such thread: in a child submit() raises LoopClosed, and close() has no effect. Threads: any thread of the
    process that created the object.
    """

    def __init__(self, name: str = "tdcore-s3") -> None:
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards the next three attributes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` in the loop. Cancelling the future cancels the coroutine.

        Raises LoopClosed after close(), and in a forked child.
        """
        if os.getpid() != self._pid:  # checked before the lock, which may have been held during the fork
            coroutine.close()
            raise LoopClosed("was opened before a fork; open the run again in this process")
        with self._lock:
            if self._closed:
                coroutine.close()
                raise LoopClosed("is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` in the loop and wait for its result. Do not call this from the loop's own thread.

        Raises LoopClosed like submit(), and if close() in another thread cancelled the coroutine.
        """
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError as error:
            raise LoopClosed("is closed") from error
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Cancel all coroutines, run `last`, stop the thread. Has no effect after that or in a child."""
        first = False
        if os.getpid() == self._pid:
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
