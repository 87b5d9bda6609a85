"""Worker: one thread that calls functions one after the other, for objects that only one thread may use.

The threads are daemons: a slow read of a run does not delay the end of the process. Coroutines of one event
loop call the methods.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

from tdcore.errors import RunNotFound

__all__ = ["Worker", "call_together"]

T = TypeVar("T")


class Worker:
    """A thread with a queue of calls. name: of the thread."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._open = 0  # calls that have not ended; used by the event loop only, as `closed`
        self.closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a call has not ended."""
        return self._open > 0

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function in the thread. If the task is cancelled, a call that has not begun is left out."""
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Put a call into the queue. Raises RunNotFound after close(), because no thread would call it."""
        if self.closed:
            raise RunNotFound("the run was removed, or closed for other runs; open it again")
        future: Future[T] = Future()
        loop = asyncio.get_running_loop()
        self._open += 1

        def ended() -> None:
            self._open -= 1

        def call() -> None:
            try:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    result = function()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            finally:
                _in_loop(loop, ended)

        self._calls.put(call)
        return future

    async def lend(self, released: threading.Event) -> None:
        """Return when the thread waits for `released`, so that another thread may use its objects."""
        arrived: Future[None] = Future()

        def wait() -> None:
            if arrived.set_running_or_notify_cancel():
                arrived.set_result(None)
                released.wait()

        self.submit(wait)
        await asyncio.wrap_future(arrived)

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """End the thread after the calls in its queue, and after one more call."""
        self.closed = True
        self._calls.put(last)
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # the call holds the objects of its caller


async def call_together(workers: Sequence[Worker], function: Callable[[], T]) -> T:
    """Call a function in the thread of the last worker, while the threads of the other workers wait.

    workers: without repetitions, in an order that is the same in all calls, so that no two calls wait for
        each other.
    """
    released = threading.Event()
    try:
        for worker in workers[:-1]:
            await worker.lend(released)
        future = workers[-1].submit(function)
    except BaseException:
        released.set()
        raise
    future.add_done_callback(lambda _: released.set())  # also if it is cancelled before it begins
    return await asyncio.wrap_future(future)


def _in_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the process ends
        loop.call_soon_threadsafe(function)
