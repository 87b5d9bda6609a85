"""Samples of a run in a bucket: merged into one file, and in the spool while the bucket is not available."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

import tdcore as td
from tdcore.flusher.options import FlusherOptions
from tdcore.maintenance.upload import upload
from tdcore.session import Session
from tdcore.sinks.s3 import parse_s3_url
from tests.s3.fixtures import Place
from tests.s3.servers import StubServer
from tests.trainers.checks import flushers_of
from tests.waiting import wait_until

pytestmark = pytest.mark.full


@pytest.fixture
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TDCORE_SPOOL", str(tmp_path / "spools"))
    return tmp_path / "spools"


@pytest.fixture
def place(stub: StubServer, s3_prefix: str) -> Place:
    return Place(server=stub, prefix=s3_prefix)


@pytest.fixture
def url(place: Place, spools: Path) -> str:
    made = parse_s3_url(place.url("run", connect_timeout="1", read_timeout="2"))
    return made.options.at(made.where)


def open_session(url: str, **options: timedelta) -> Session:
    return Session(
        url,
        configuration={},
        framework="test",
        framework_version="1",
        flusher_options=FlusherOptions(system_interval=timedelta(seconds=0.1), **options),  # type: ignore[arg-type]
    )


def system_keys(place: Place) -> list[str]:
    return [key for key in place.objects() if "/system/" in key]


def test_samples_in_a_bucket_are_one_file_at_the_end(place: Place, url: str) -> None:
    with open_session(url, remote_row_delay=timedelta(seconds=0.2)):
        wait_until(lambda: len(system_keys(place)) >= 3, "there are several files")
    wait_until(lambda: not flushers_of(url), "the flusher ended")
    assert len(system_keys(place)) == 1
    with closing(td.create_trial(url)) as trial:
        table = trial.system()
    assert table["sample"].to_pylist() == list(range(table.num_rows))
    assert sum(table["lost"].to_pylist()) == 0


def test_samples_of_a_job_that_ends_without_its_bucket_are_uploaded_later(
    stub: StubServer, url: str, spools: Path
) -> None:
    session = open_session(url, spill_after=timedelta(seconds=0.2), end_deadline=timedelta(seconds=1))
    stub.set(refuse=True)
    wait_until(lambda: session.progress().flusher_epoch == 1, "the flusher has started")
    session.close()
    wait_until(lambda: not flushers_of(url), "the flusher ended")
    stub.set(refuse=False)
    upload(spools)
    with closing(td.create_trial(url)) as trial:
        samples = trial.system()
    assert samples.num_rows >= 1
    assert samples["trainer_memory"][0].as_py() > 0
