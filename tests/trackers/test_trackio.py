"""Export to Trackio, read back with Trackio's own store.

Trackio has one folder per process, so this file has one export.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tdcore.errors import ConfigError
from tdcore.export import export_run
from tests.export.runs import expected_numbers, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "demo")


@pytest.fixture(scope="module")
def trackio(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if find_spec("trackio") is None:  # its first import takes its folder from the environment
        pytest.skip("Trackio is not installed")
    export_run(run, "trackio", tmp_path_factory.mktemp("trackio") / "out")
    import trackio

    return trackio


def logs(label: str) -> dict[int, dict[str, Any]]:
    from trackio.sqlite_storage import SQLiteStorage

    return {each["step"]: each for each in SQLiteStorage.get_logs("demo", label)}


def test_every_number_is_read_back_in_float64(run: Path, trackio: Any) -> None:
    from tdcore.export.trackio import _NAMING

    found = {
        label: logs(label) for label in sorted({f"attempt_{a}/worker_{w}" for a in (0, 1) for w in (0, 1)})
    }
    for (attempt, worker, mode, step, name, call, statistic), number in expected_numbers(run).items():
        row = found[f"attempt_{attempt}/{worker}"][step]
        value = row[_NAMING.tag(f"{mode}/{name}", call, statistic)]
        assert value == number or (math.isnan(value) and math.isnan(number)), (name, statistic)
        assert row[f"{mode}/step"] == (step if mode == "TRAIN" else step // 2)


def test_findings_are_alerts_and_parameters_are_the_configuration(trackio: Any) -> None:
    runs = {each.name: each for each in trackio.Api().runs("demo")}
    (alert,) = [each for each in trackio.Api().alerts("demo") if each["title"] == "finding: ExplodingTensor"]
    assert (alert["run"], alert["level"], alert["step"]) == ("attempt_1/worker_1", "error", 2)
    assert runs["attempt_0/worker_0"].config["hyperparameter/lr"] == 0.25


def test_histograms_have_the_stored_counts(trackio: Any) -> None:
    histogram = logs("attempt_0/worker_0")[0]["TRAIN/w/magnitudes"]
    assert sum(histogram["values"]) == 6
    assert len(histogram["bins"]) == len(histogram["values"]) + 1


def test_a_second_folder_in_one_process_is_refused(run: Path, trackio: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="export to Trackio in another process"):
        export_run(run, "trackio", tmp_path / "other")
    assert list(tmp_path.iterdir()) == []
