"""Plays one scenario: its servers, its job, the upload of remaining objects, and the checks.

Uses 127.0.0.1 only.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from unittest import mock
from urllib.parse import quote

from tdcore.errors import RunNotFound
from tdcore.format.layout import end_key
from tdcore.maintenance.upload import upload
from tdcore.sinks.spool import find_spools
from tests.faults.check import check_bucket, check_trial
from tests.faults.outcome import Outcome, Result
from tests.faults.processes import ProcessJob, storage_of
from tests.faults.scenario import Scenario
from tests.faults.threads import ThreadJob, short_times
from tests.faults.weather import TOKENS, Weather
from tests.s3.proxy import FaultProxy
from tests.s3.servers import KEYS, ROOT, StubServer, stub_server
from tests.s3.tls import Certificates, make_certificates

__all__ = ["Stage"]

_SECRETS = (KEYS.secret_key, quote(KEYS.secret_key, safe=""), *TOKENS, "Signature=")
_UPLOAD_SECONDS = 60


class Stage:
    """Servers for many scenarios, one after the other; a context manager."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        self._stub: StubServer = self._open.enter_context(stub_server())
        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="tdcore-faults-"))
        self._certificates: Certificates = make_certificates(Path(folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def play(self, scenario: Scenario) -> Result:
        """Play a scenario and return its result; failures are stored in the result, not raised."""
        result = Result(number=scenario.number, replay=scenario.replay, processes=scenario.processes)
        begun = time.monotonic()
        printed = io.StringIO()
        try:
            with _recorded(printed), tempfile.TemporaryDirectory(prefix="tdcore-faults-") as folder:
                self._play(scenario, Path(folder), printed, result)
        except Exception as error:
            where = "".join(traceback.format_exception(error))
            result.error = f"{type(error).__name__}: {error}\n{where}\n{printed.getvalue()[-2000:]}"
        result.seconds = time.monotonic() - begun
        return result

    def _play(self, scenario: Scenario, folder: Path, printed: io.StringIO, result: Result) -> None:
        self._stub.reset()
        prefix = f"runs/{scenario.number}"
        spools = folder / "spool"
        with (
            mock.patch.dict(os.environ, self._environment(folder)),
            self._proxy(scenario) as proxy,
        ):
            url = self._url(scenario, proxy, prefix, spools)
            weather = Weather(scenario.episodes, self._stub, proxy)
            outcome = _job(scenario, url, folder, spools, weather, printed)
            result.struck, result.idle = dict(weather.struck), weather.idle
            result.restarts = outcome.restarts
            _check_secrets("the spool", _files(spools))
            result.uploaded = _upload(scenario, spools)
            away = scenario.away_at_end or scenario.death == "both"
            assert away or not result.uploaded, f"{result.uploaded} objects stayed in the spool for no reason"
            objects = self._objects(prefix)
            if scenario.may_give_up and end_key("worker_0", 0) not in objects:
                outcome = replace(outcome, lossy=True)
            checked = check_bucket(objects, scenario.specs, outcome)
            well = self._stub.url(prefix, engine="obstore")
            check_trial(well, scenario.specs, checked, outcome)
        _check_secrets("the bucket", objects)
        _check_secrets("the output", {"stderr and logs": printed.getvalue().encode()})
        result.tensors, result.dropped, result.strays = len(checked.kept), checked.dropped, checked.strays
        told = storage_of(objects) if scenario.processes else outcome.storage
        result.retries = told["retries"]
        result.spooled_objects, result.spooled_bytes = told["spooled_objects"], told["spooled_bytes"]

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            **self._stub.environment,
            "AWS_SESSION_TOKEN": TOKENS[0],
            "TDCORE_CACHE": str(folder / "cache"),
            "TDCORE_SPOOL": str(folder / "spool"),
        }

    def _proxy(self, scenario: Scenario) -> FaultProxy:
        made = self._certificates
        return FaultProxy(
            self._stub.port,
            seed=scenario.number,
            certificate=str(made.certificate) if scenario.tls else None,
            certificate_key=str(made.key) if scenario.tls else None,
        )

    def _url(self, scenario: Scenario, proxy: FaultProxy, prefix: str, spools: Path) -> str:
        seconds = "1" if scenario.processes else "0.5"
        return self._stub.url(
            prefix,
            endpoint_url=proxy.endpoint,
            ca_bundle=str(self._certificates.ca) if scenario.tls else None,
            engine=scenario.engine,
            connect_timeout=seconds,
            read_timeout=seconds,
            spool=str(spools),
            spool_bytes=str(max(1 << 20, scenario.spool_bytes)),
        )

    def _objects(self, prefix: str) -> dict[str, bytes]:
        found = self._stub.objects()
        foreign = [key for key in found if not key.startswith(prefix + "/")]
        assert not foreign, f"objects outside of the run: {foreign[:5]}"
        return {key[len(prefix) + 1 :]: data for key, data in found.items()}


def _job(
    scenario: Scenario, url: str, folder: Path, spools: Path, weather: Weather, printed: io.StringIO
) -> Outcome:
    if not scenario.processes:
        with short_times():
            return ThreadJob(scenario, url, spools).run(weather)
    job = ProcessJob(scenario, url, folder)
    try:
        return job.run(weather)
    finally:
        printed.write(job.output())


def _upload(scenario: Scenario, spools: Path) -> int:
    """Upload the remaining objects to the bucket; return their number."""
    left = find_spools(spools)
    if not left:
        return 0
    for folder in left:
        _wait_until_free(folder / "lock")
    if scenario.command:
        done = subprocess.run(
            [sys.executable, "-c", "from tdcore.cli import main; main()", "upload", str(spools), "--json"],
            capture_output=True,
            cwd=ROOT,
            timeout=_UPLOAD_SECONDS,
            check=False,
        )
        _check_secrets("tdcore upload", {"output": done.stdout + done.stderr})
        assert done.returncode == 0, f"tdcore upload: {done.returncode} {done.stderr.decode()[-2000:]}"
        count: int = sum(spool["objects"] for spool in json.loads(done.stdout)["spools"])
    else:
        results = upload(spools)
        assert not any(each.left or each.damaged for each in results), f"upload left something: {results}"
        count = sum(each.objects for each in results)
    with contextlib.suppress(RunNotFound):
        raise AssertionError(f"a second upload found {upload(spools)}")
    return count


def _wait_until_free(lock: Path) -> None:
    """Wait until a killed process has released its files, which happens when its last thread has ended."""
    with lock.open("a") as file:
        for _ in range(100):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.1)
    raise AssertionError(f"{lock} is still held, although every process has ended")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _check_secrets(what: str, texts: Mapping[str, bytes]) -> None:
    for name, text in texts.items():
        for secret in _SECRETS:
            assert secret.encode() not in text, f"{what}: {name} contains a secret"


@contextlib.contextmanager
def _recorded(printed: io.StringIO) -> Iterator[None]:
    """Record printed and logged text."""
    handler = logging.StreamHandler(printed)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stderr(printed):
            yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
