"""The threads of the runs of the view."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tdcore.errors import RunNotFound
from tdcore.view.server.worker import Worker, call_together


def test_a_call_to_a_closed_worker_is_an_error_and_releases_the_other_workers() -> None:
    """Without the error, this request and all later requests to the other run would wait without end."""

    async def main() -> int:
        busy = threading.Event()
        first, second = Worker("first"), Worker("second")
        first.submit(busy.wait)
        together = asyncio.ensure_future(call_together([first, second], lambda: 1))
        await asyncio.sleep(0)  # it waits for the first worker
        second.close()
        busy.set()
        with pytest.raises(RunNotFound, match="the run was removed"):
            await together
        with pytest.raises(RunNotFound):
            await second.call(lambda: 2)
        found = await first.call(lambda: 3)
        first.close()
        return found

    assert asyncio.run(main()) == 3
