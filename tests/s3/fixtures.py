"""pytest fixtures: servers that live for the whole session, and environment variables for them.

tests/conftest.py provides them for all tests.

`moto`, `rclone` and `stub` are for one test each: the AWS_ variables are set for that server only, and the
stub is empty and without faults. `s3_prefix` is a prefix that no other test has. `s3_place` is a prefix on
each server in turn.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.s3.servers import NoServerError, Server, StubServer, moto_server, rclone_server, stub_server

_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Place:
    """A prefix of a server's bucket, initially empty."""

    server: Server
    prefix: str

    def url(self, below: str = "", **options: str | None) -> str:
        """Return the place as one string, with the options that the server needs."""
        return self.server.url(self.prefix + (f"/{below}" if below else ""), **options)

    def objects(self) -> dict[str, bytes]:
        """Return every object below the prefix, by its key after the prefix."""
        start = self.prefix + "/"
        return {key[len(start) :]: value for key, value in self.server.objects(start).items()}


def _running(make: Callable[[], contextlib.AbstractContextManager[Server]]) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(make())
        except NoServerError as reason:
            pytest.skip(str(reason))
        yield server


def use(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """Set the AWS_ variables for the server, and remove all others."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def moto_session() -> Iterator[Server]:
    yield from _running(moto_server)


@pytest.fixture(scope="session")
def rclone_session() -> Iterator[Server]:
    yield from _running(rclone_server)


@pytest.fixture(scope="session")
def stub_session() -> Iterator[Server]:
    yield from _running(stub_server)


@pytest.fixture
def moto(moto_session: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    use(monkeypatch, moto_session)
    return moto_session


@pytest.fixture
def rclone(rclone_session: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    use(monkeypatch, rclone_session)
    return rclone_session


@pytest.fixture
def stub(stub_session: StubServer, monkeypatch: pytest.MonkeyPatch) -> StubServer:
    use(monkeypatch, stub_session)
    stub_session.reset()
    return stub_session


@pytest.fixture
def s3_prefix() -> str:
    return f"test-{next(_numbers)}"


@pytest.fixture(params=["moto", "rclone", "stub"])
def s3_place(request: pytest.FixtureRequest, s3_prefix: str) -> Place:
    return Place(server=request.getfixturevalue(request.param), prefix=s3_prefix)
