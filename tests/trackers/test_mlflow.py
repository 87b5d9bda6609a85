"""Export to MLflow, read back with MLflow's client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tdcore.export import export_run
from tests.export.runs import HOURS_AGO_NS, expected_numbers, write_run

mlflow: Any = pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "demo")


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    out = tmp_path_factory.mktemp("mlflow") / "out"
    export_run(run, "mlflow", out)
    client = mlflow.MlflowClient(f"sqlite:///{out}/mlflow.db")
    (experiment,) = [each for each in client.search_experiments() if each.name == "demo"]
    runs = client.search_runs([experiment.experiment_id])
    return client, {each.info.run_name: each for each in runs}


def test_every_number_is_read_back_in_float64(run: Path, exported: tuple[Any, dict[str, Any]]) -> None:
    from tdcore.export.mlflow import _NAMING

    client, runs = exported
    expected = expected_numbers(run)
    wanted: defaultdict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for (attempt, worker, mode, step, name, call, statistic), number in expected.items():
        largest = np.finfo(np.float64).max  # as MLflow stores infinities
        value = float(np.clip(number, -largest, largest))
        wanted[f"attempt_{attempt}/{worker}", _NAMING.tag(f"{mode}/{name}", call, statistic)][step] = value
    assert sum(map(len, wanted.values())) == len(expected)
    for (label, tag), numbers in wanted.items():
        history = client.get_metric_history(runs[label].info.run_id, tag)
        found = {each.step: each.value for each in history}
        assert found.keys() == numbers.keys()
        np.testing.assert_array_equal([found[step] for step in numbers], list(numbers.values()))
        assert abs(history[0].timestamp - HOURS_AGO_NS / 1e6) < 1000


@pytest.mark.full
def test_mlflow_sends_no_telemetry(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom tdcore.export import Selection\n"
        "from tdcore.export.target import open_target\n"
        "with open_target('mlflow', Path(sys.argv[1]), Selection()):\n"
        "    from mlflow.telemetry import get_telemetry_client\n"
        "    print(get_telemetry_client())"
    )
    names = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH")  # MLflow sends nothing from tests and CI
    variables = {name: os.environ[name] for name in names if name in os.environ}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_runs_have_parameters_and_a_count_of_infinities(exported: tuple[Any, dict[str, Any]]) -> None:
    _, runs = exported
    data = runs["attempt_0/worker_1"].data
    assert data.params["hyperparameter/lr"] == "0.25"
    assert data.tags["tdcore.worker"] == "worker_1"
    assert data.tags["tdcore.infinities"] == "2"
    assert runs["attempt_1/worker_1"].data.tags["tdcore.findings"] == "1"


def test_findings_notes_and_histograms_are_artifacts(exported: tuple[Any, dict[str, Any]]) -> None:
    _, runs = exported

    def artifact(label: str, name: str) -> Path:
        return Path(runs[label].info.artifact_uri.removeprefix("file://")) / name

    (line,) = artifact("attempt_1/worker_1", "findings.jsonl").read_text().splitlines()
    assert json.loads(line)["why"] == "it has NaN"
    assert "layer 7" in artifact("attempt_0/worker_0", "notes.txt").read_text()
    histograms = pq.read_table(artifact("attempt_0/worker_0", "histograms.parquet")).to_pylist()
    assert {row["name"] for row in histograms} >= {"w", "a"}
