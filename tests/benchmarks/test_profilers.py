"""Results of `python -m benchmarks profilers`: ratios of pairs, numbers per 1,000 steps, missing peers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import profilers


def block(own: float, helpers: float = 0.0) -> dict[str, float]:
    return {"wall": 2 * own, "own": own, "thread": own, "helpers": helpers}


def document() -> dict[str, Any]:
    """Three pairs with the ratios 1.1, 1.2 and 1.3, and a long block of 500 steps."""
    pairs = [{"on": block(own), "off": block(0.01), "waited_s": 0.0} for own in (0.011, 0.012, 0.013)]
    long = {"steps": 500, "bytes": 3000, "helpers_s": 9.0, "waited_s": 0.5, "running_helpers_s": 0.2}
    return {"pairs": pairs, "long": long}


def test_a_slowdown_is_the_median_of_the_ratios_of_pairs() -> None:
    found = profilers.summary(document())
    for name in ("step", "wall", "cpu"):
        assert found[name]["median"] == pytest.approx(1.2)
        assert found[name]["low"] == pytest.approx(1.1)
        assert found[name]["high"] == pytest.approx(1.3)
    assert found["step_ms"] == pytest.approx(10)


def test_bytes_and_helpers_are_per_1000_steps_of_the_long_block() -> None:
    found = profilers.summary(document())
    assert found["files_bytes"] == 6000
    assert found["helpers_s"] == pytest.approx(0.4)
    assert found["waited_s"] == 0.5


def test_clock_ticks_cannot_make_the_time_of_helpers_negative() -> None:
    found = document()
    found["long"]["running_helpers_s"] = -0.004
    assert profilers.summary(found)["helpers_s"] == 0


def test_a_peer_that_is_not_installed_is_in_the_result_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profilers, "peer_bin", lambda environment: tmp_path / environment / "bin")
    monkeypatch.setattr(
        sys, "argv", ["profilers", "--models", "mlp", "--tools", "traceml", "--out", str(tmp_path / "out")]
    )
    profilers.main()
    (path,) = (tmp_path / "out").iterdir()
    (row,) = json.loads(path.read_text())["rows"]
    assert row["error"] == "not installed: python3 scripts/make_peers.py profilers"
    assert "not measured" in capsys.readouterr().out


def test_a_worker_that_fails_is_reported_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no profiler here')"]
    monkeypatch.setattr(profilers, "command_of", lambda tool, folder: command)
    assert "no profiler here" in profilers.in_process("cProfile", "mlp", 0, 5, 5)["error"]
