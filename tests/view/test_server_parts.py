"""Parts of the server of the view: threads of runs, accepted hosts, signatures of folders, ids of runs."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import RunNotFound
from tdcore.view.server.events import Events
from tdcore.view.server.guard import HostNames
from tdcore.view.server.run_list import RunList
from tdcore.view.server.signature import signature_of
from tdcore.view.server.worker import Worker, call_together
from tests.trial.writer import RunWriter

# Threads of runs. ------------------------------------------------------------------------------------------


def test_calls_that_share_runs_never_overlap_and_all_end() -> None:
    async def main() -> int:
        workers = [Worker(f"test {number}") for number in range(4)]
        users: list[int] = [0] * len(workers)
        done = 0
        numbers = random.Random(0)

        def use(chosen: list[int]) -> None:
            nonlocal done
            for at in chosen:
                users[at] += 1
                assert users[at] == 1
            os.sched_yield()
            for at in chosen:
                users[at] -= 1
            done += 1

        def request() -> asyncio.Task[None]:
            chosen = sorted(numbers.sample(range(4), numbers.randint(1, 4)))
            return asyncio.ensure_future(call_together([workers[at] for at in chosen], lambda: use(chosen)))

        tasks = [request() for _ in range(300)]
        await asyncio.sleep(0)
        for task in numbers.sample(tasks, 80):
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in results} <= {type(None), asyncio.CancelledError}
        await asyncio.gather(*(worker.call(lambda: None) for worker in workers))  # no thread is stuck
        for worker in workers:
            worker.close()
        return done

    assert asyncio.run(main()) >= 220


def test_a_slow_run_does_not_delay_another_one() -> None:
    async def main() -> None:
        slow, fast, go = Worker("slow"), Worker("fast"), threading.Event()
        waiting = asyncio.ensure_future(slow.call(go.wait))
        assert await fast.call(lambda: 3) == 3
        assert (slow.busy, waiting.done()) == (True, False)
        go.set()
        assert await waiting
        slow.close()
        fast.close()

    asyncio.run(main())


def test_a_call_of_a_closed_run_is_an_error_and_does_not_wait() -> None:
    async def main() -> None:
        worker = Worker("closed")
        worker.close()
        with pytest.raises(RunNotFound):
            await worker.call(lambda: None)
        with pytest.raises(RunNotFound):
            await call_together([worker], lambda: None)

    asyncio.run(main())


def test_an_exception_of_a_call_reaches_its_caller_only() -> None:
    async def main() -> None:
        worker = Worker("raising")
        with pytest.raises(ZeroDivisionError):
            await worker.call(lambda: 1 // 0)
        assert await worker.call(lambda: 1) == 1
        worker.close()

    asyncio.run(main())


# Hosts. ----------------------------------------------------------------------------------------------------

_LABEL = st.sampled_from(
    [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[::2]",
        "",
        "0",
    ]
)


@given(name=st.one_of(_LABEL, st.text(max_size=12)), port=st.sampled_from(["", ":80", ":", ":x", ":80:90"]))
def test_only_names_of_this_machine_are_accepted(name: str, port: str) -> None:
    try:
        parsed = urlsplit(f"//{name}{port}").hostname
    except ValueError:
        parsed = None
    if HostNames().accept(name + port):
        assert (parsed or name).lower() in ("localhost", "127.0.0.1", "::1")


@given(st.ip_addresses())
def test_a_server_on_all_interfaces_accepts_every_address_and_no_other_name(address: object) -> None:
    host = f"[{address}]" if ":" in str(address) else str(address)
    names = HostNames(["box"], any_address=True)
    assert names.accept(f"{host}:8000")
    assert names.accept("BOX:1")
    assert not names.accept(f"{address}.example")


# Signatures. -----------------------------------------------------------------------------------------------


WRITTEN = (
    "findings/a.jsonl", "findings/b.jsonl", "end/worker_0/0000.json", "run.json", "collections.json",
    "index/worker_1/x.parquet", "system/host/worker_0/x.parquet", "time/worker_0/x.parquet",
)  # fmt: skip


def test_every_file_of_a_run_changes_its_signature(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.add("loss", 1.0, step=0, kind="loss")
    run.flush()
    place = str(tmp_path / "run")

    def settled() -> None:
        """Make all folders old, so that a change of their times is visible at any resolution."""
        for folder, _, _ in os.walk(place):
            os.utime(folder, ns=(10**18, 10**18))

    for key in WRITTEN:
        settled()
        before = signature_of(place)
        assert before is not None
        assert not before.recent
        same = signature_of(place)
        assert same is not None
        assert not same.differs(before)
        run.write(key, b"{}")
        after = signature_of(place)
        assert after is not None
        assert after.differs(before), key
        assert after.differs(after), "a folder that has just changed is read again"


def test_a_folder_that_is_missing_has_no_signature(tmp_path: Path) -> None:
    assert signature_of(str(tmp_path / "missing")) is None


def test_a_link_in_a_run_is_not_followed(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run")
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "index").mkdir()
    (tmp_path / "run" / "index" / "link").symlink_to(tmp_path / "elsewhere")
    signature = signature_of(str(tmp_path / "run"))
    assert signature is not None
    assert not [folder for folder, _, _ in signature.folders if folder.endswith("/link")]


# Ids. ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "a,b", "\x1b[31mred", "\u202etxt", 'q"<>', "a b", "ü", "\udcff"])
def test_ids_of_runs_are_texts_that_an_address_can_hold(tmp_path: Path, name: str) -> None:
    RunWriter(tmp_path / "runs" / name).end()
    RunWriter(tmp_path / "runs" / "other").end()
    entries = RunList(str(tmp_path / "runs")).scan()
    (found,) = [each for each in entries.values() if each.id != "other"]
    assert found.place == str(tmp_path / "runs" / name)
    assert found.id.encode().decode() == found.id
    assert "," not in found.id


# Events. ---------------------------------------------------------------------------------------------------


def test_a_page_that_reads_slowly_gets_the_newest_state_once() -> None:
    async def main() -> list[bytes]:
        watched: list[str] = []
        events = Events(lambda: watched.append("watch"), lambda: watched.append("rest"), dict)
        stream = events.stream()
        first = [await anext(stream), await anext(stream)]
        for version in range(1000):
            events.publish("a", version, "running")
        second = await anext(stream)
        await stream.aclose()
        assert watched == ["watch", "rest"]
        return [*first, second]

    retry, alive, event = asyncio.run(main())
    assert (retry, alive) == (b"retry: 1000\n\n", b": alive\n\n")
    assert event == b'event: run\ndata: {"run": "a", "version": 999, "status": "running"}\n\n'
