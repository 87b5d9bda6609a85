"""Hook(export_tensorboard=True): another process exports the run, and the training does not wait."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.hooks.pytorch import Hook, create_from_json_file
from tests.export.test_tensorboard import read, scalars
from tests.waiting import wait_until

from .models import Net, train

RING = td.RingConfig(ring_bytes=1 << 22, slots=1024)


def trained(hook: Hook, steps: int = 3) -> None:
    model = Net()
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=steps)
    hook.save_scalar("progress", 0.25)


def has_points(folder: Path, number: int) -> bool:
    if not list(folder.glob("events.*")):
        return False
    reader = read(folder)
    return (
        "Net_fc1.weight/l2" in reader.Tags()["scalars"]
        and len(scalars(reader, "Net_fc1.weight/l2")) == number
    )


@pytest.mark.full
def test_each_attempt_is_exported_below_the_folder(tmp_path: Path) -> None:
    before = set(sys.modules)
    places: list[Path | str] = [tmp_path / "demo", (tmp_path / "demo").as_uri()]
    for attempt, out_dir in enumerate(places):
        with Hook(
            out_dir,
            export_tensorboard=True,
            tensorboard_dir=str(tmp_path / "tb"),
            include_collections=["weights"],
            save_config=td.SaveConfig(save_interval=1),
            ring=RING,
            flusher="thread",
        ) as hook:
            trained(hook)
        place = tmp_path / "tb" / "demo" / f"attempt_{attempt}" / "worker_0" / "TRAIN"
        rows = td.create_trial(tmp_path / "demo", attempt=attempt).stats(["Net_fc1.weight"]).to_pylist()
        wait_until(partial(has_points, place, len(rows)), "the attempt is exported")
        found = [value for _, value in scalars(read(place), "Net_fc1.weight/l2")]
        assert found == [float(np.float32(row["l2"])) for row in rows]
    assert not [name for name in set(sys.modules) - before if name.startswith("tdcore.export.follow")]


def test_the_default_folder_is_in_the_run(tmp_path: Path) -> None:
    config = td.config.HookConfig(out_dir=str(tmp_path / "demo"), export_tensorboard=True)
    assert config.tensorboard_folder == str(tmp_path / "demo" / "tensorboard")


def test_a_run_in_a_bucket_needs_a_local_folder() -> None:
    with pytest.raises(ConfigError, match="needs tensorboard_dir, a local folder"):
        Hook("s3://bucket/run", export_tensorboard=True)
    for folder in ("s3://bucket/tb", b"tb", 5):
        with pytest.raises(ConfigError, match="tensorboard_dir must be a local folder"):
            Hook("s3://bucket/run", export_tensorboard=True, tensorboard_dir=folder)  # type: ignore[arg-type]


def test_a_folder_without_an_export_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Hook(tmp_path / "run", tensorboard_dir=str(tmp_path / "tb"), dry_run=True).close()
    assert "tensorboard_dir has no effect without export_tensorboard=True" in caplog.text


def test_the_older_json_switches_the_export_on(tmp_path: Path) -> None:
    parameters = {"export_tensorboard": "true", "tensorboard_dir": str(tmp_path / "tb"), "dry_run": "true"}
    document = {"LocalPath": str(tmp_path / "run"), "HookParameters": parameters}
    (tmp_path / "hook.json").write_text(json.dumps(document))
    with create_from_json_file(tmp_path / "hook.json") as hook:
        assert hook.config.tensorboard_folder == str(tmp_path / "tb" / "run")
