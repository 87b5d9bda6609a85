"""A job of real processes: a trainer with its session, and its flusher; the job kills them with SIGKILL."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from tdcore.flusher import FlusherOptions
from tdcore.format.layout import end_key
from tests.faults.outcome import Outcome
from tests.faults.scenario import Scenario
from tests.faults.weather import Weather
from tests.s3.servers import ROOT

__all__ = ["ProcessJob", "storage_of"]

_FLUSHER = "tdcore.flusher.main"
_SECONDS = 90.0  # no step takes this long unless something is broken
_LOOK_SECONDS = 0.02
_MOST_STEPS = 400
_END_SECONDS = 2.0  # how long a job waits for a service that is away


class ProcessJob:
    """The job of `scenario`, at `url`; its files are in `folder`."""

    def __init__(self, scenario: Scenario, url: str, folder: Path) -> None:
        self.scenario = scenario
        self.url = url
        self._spools = str(folder)  # only flushers of this run have it in their command line
        self._ledger = folder / "ledger.txt"
        self._report = folder / "report.json"
        self._output = folder / "output.txt"
        self._trainer: subprocess.Popen[bytes] | None = None
        self._killed: set[int] = set()
        self._flushers: dict[int, psutil.Process] = {}  # all flushers of this job

    def run(self, weather: Weather) -> Outcome:
        """Run from the first step to the end of the last process."""
        trainer = self._trainer = self._start()
        try:
            self._train(trainer, weather)
            self._end(trainer)
            self._wait_for_flushers()
        finally:
            self._stop()
        weather.clear()
        return self._outcome()

    def output(self) -> str:
        """Return the output of trainer and flushers."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def _start(self) -> subprocess.Popen[bytes]:
        scenario = self.scenario
        away = scenario.away_at_end
        options = FlusherOptions(
            segment_bytes=scenario.segment_bytes,
            visible_delay=timedelta(milliseconds=50),
            merge_fan_in=scenario.fan_in,
            merged_segment_bytes=scenario.merged_bytes,
            grace=timedelta(milliseconds=200),
            end_deadline=timedelta(seconds=_END_SECONDS if away else 40),
        )
        job = {
            "out": self.url,
            "ledger": str(self._ledger),
            "report": str(self._report),
            "steps": scenario.steps,
            "pause": max(scenario.pause, 0.01),
            "specs": [asdict(spec) for spec in scenario.specs],
            "ring": {
                "ring_bytes": scenario.ring_bytes,
                "slots": scenario.slots,
                "when_full": scenario.policy,
            },
            "options": options.as_json(),
            "close_seconds": _END_SECONDS if away else 60,
        }
        with self._output.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.trainer", json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )

    def _train(self, trainer: subprocess.Popen[bytes], weather: Weather) -> None:
        """Train until all steps are done and every fault has struck."""
        kills = list(self.scenario.kills)
        deadline = time.monotonic() + _SECONDS
        allowed = self.scenario.steps
        assert trainer.stdin is not None
        while True:
            assert time.monotonic() < deadline, f"the trainer makes no progress: {self.output()[-2000:]}"
            assert trainer.poll() is None, f"the trainer ended: {self.output()[-2000:]}"
            done = len(self._captured())
            if done:  # the run exists; before the first step a fault would make its claim fail
                weather.look(done)
            if kills and kills[0].step <= done and self._kill_flusher():
                kills.pop(0)
            if done >= allowed:
                if (weather.calm and not kills) or allowed >= _MOST_STEPS:
                    return
                allowed += 1
                trainer.stdin.write(b"\n")
                trainer.stdin.flush()
            time.sleep(_LOOK_SECONDS)

    def _end(self, trainer: subprocess.Popen[bytes]) -> None:
        assert trainer.stdin is not None
        if not self.scenario.death:
            self._kill_flusher(look_only=True)
            trainer.stdin.close()
            assert trainer.wait(_SECONDS) == 0, f"the trainer failed: {self.output()[-2000:]}"
            return
        trainer.send_signal(signal.SIGSTOP)  # so that the trainer starts no further flusher
        time.sleep(_LOOK_SECONDS)
        self._kill_flusher(look_only=True)
        trainer.kill()
        trainer.wait()
        self._find_orphans()
        if self.scenario.death == "both":
            for flusher in self._living():
                self._killed.add(flusher.pid)
                flusher.kill()
        with contextlib.suppress(BrokenPipeError):
            trainer.stdin.close()

    def _kill_flusher(self, look_only: bool = False) -> bool:
        """Kill the flusher that serves the ring; return False if there is none."""
        assert self._trainer is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._trainer.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    if any(f'"module": "{_FLUSHER}"' in word for word in child.cmdline()):
                        self._flushers[child.pid] = child
        for flusher in self._living():
            if flusher.pid not in self._killed and not look_only:
                self._killed.add(flusher.pid)
                flusher.kill()
                return True
        return False

    def _find_orphans(self) -> None:
        """Find flushers that the trainer started just before its death, which are not known yet."""
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if any(_FLUSHER in word for word in words) and any(self._spools in word for word in words):
                self._flushers[process.pid] = process

    def _living(self) -> list[psutil.Process]:
        return [each for each in self._flushers.values() if _lives(each)]

    def _wait_for_flushers(self) -> None:
        deadline = time.monotonic() + _SECONDS
        while self._living():
            assert time.monotonic() < deadline, f"a flusher does not end: {self.output()[-2000:]}"
            time.sleep(_LOOK_SECONDS)

    def _stop(self) -> None:
        """Kill all remaining processes."""
        if self._trainer is not None and self._trainer.poll() is None:
            self._kill_flusher(look_only=True)
            self._trainer.kill()
            self._trainer.wait()
        for flusher in self._living():
            with contextlib.suppress(psutil.NoSuchProcess):
                flusher.kill()

    def _captured(self) -> dict[int, int]:
        text = self._ledger.read_text() if self._ledger.exists() else ""
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return {int(step): int(left_out) for step, left_out in lines}

    def _outcome(self) -> Outcome:
        captured = self._captured()
        report = json.loads(self._report.read_text()) if self._report.exists() else None
        lossy = self.scenario.death == "both"
        return Outcome(
            captured=captured,
            unsure=frozenset() if report else frozenset([len(captured)]),
            clean=not self.scenario.death,
            restarts=len(self._killed),
            drops=report["drops"] if report and report["drained"] else None,
            lossy=lossy,
        )


def storage_of(objects: Mapping[str, bytes]) -> dict[str, int]:
    """Return retries and spooled bytes of a job of processes, from its end file."""
    end: dict[str, Any] = json.loads(objects.get(end_key("worker_0", 0), b"{}"))
    storage = end.get("storage") or {"retries": {}, "spooled": {"objects": 0, "bytes": 0}}
    return {
        "retries": sum(storage["retries"].values()),
        "spooled_objects": storage["spooled"]["objects"],
        "spooled_bytes": storage["spooled"]["bytes"],
    }


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
