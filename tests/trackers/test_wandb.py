"""Export to Weights & Biases. The records of an offline run are read with the classes of wandb."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tdcore.export import export_run
from tests.export.runs import HOURS_AGO_NS, expected_numbers, write_run

pb: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
_BLOCK = 32768


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: a LevelDB log of protobuf messages after a header of 7 bytes."""
    data, at, piece = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        piece = (piece if kind in (3, 4) else b"") + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = pb.Record()
            record.ParseFromString(piece)
            yield record


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "demo: 50%")  # wandb refuses ":" and "%"


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The records of each offline run, by name."""
    out = tmp_path_factory.mktemp("wandb") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_RUN_ID", "shared")
        export_run(run, "wandb", out)
    found, ids = {}, set()
    for path in out.glob("wandb/offline-run-*/*.wandb"):
        mine = list(records(path))
        (about,) = [each.run for each in mine if each.WhichOneof("record_type") == "run"]
        assert (about.project, about.run_group) == ("demo_ 50_", "0123")
        ids.add(about.run_id)
        found[about.display_name] = mine
    assert len(ids) == len(found)
    return found


def history(mine: list[Any]) -> dict[int, dict[str, Any]]:
    rows = {}
    for each in mine:
        if each.WhichOneof("record_type") == "history":
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in each.history.item
            }
            rows[int(row["_step"])] = row
    return rows


def test_every_number_is_read_back_in_float64(run: Path, exported: dict[str, list[Any]]) -> None:
    from tdcore.export.wandb import _NAMING

    found = {label: history(mine) for label, mine in exported.items()}
    for (attempt, worker, mode, step, name, call, statistic), number in expected_numbers(run).items():
        row = found[f"attempt_{attempt}/{worker}"][step]
        value = float(row[_NAMING.tag(f"{mode}/{name}", call, statistic)])
        assert value == number or (math.isnan(value) and math.isnan(number)), (name, statistic)
        assert row[f"{mode}/step"] == (step if mode == "TRAIN" else step // 2)
        assert abs(row["_timestamp"] - HOURS_AGO_NS / 1e9) < 1


def test_findings_are_alerts_of_their_worker(exported: dict[str, list[Any]]) -> None:
    alerts = {
        label: [each.alert for each in mine if each.WhichOneof("record_type") == "alert"]
        for label, mine in exported.items()
    }
    (alert,) = alerts.pop("attempt_1/worker_1")
    assert (alert.title, alert.level) == ("ExplodingTensor", "ERROR")
    assert "it has NaN" in alert.text
    assert not any(alerts.values())


def test_parameters_are_the_configuration(exported: dict[str, list[Any]]) -> None:
    configuration = {
        item.key: json.loads(item.value_json)
        for each in exported["attempt_0/worker_0"]
        for item in [*each.run.config.update, *each.config.update]
    }
    assert configuration["hyperparameter/lr"] == 0.25
    assert configuration["framework"] == "tests"


def test_histograms_have_the_stored_counts(exported: dict[str, list[Any]]) -> None:
    row = history(exported["attempt_0/worker_0"])[0]
    assert row["TRAIN/w/magnitudes/_type"] == "histogram"
    assert sum(row["TRAIN/w/magnitudes/values"]) == 6
