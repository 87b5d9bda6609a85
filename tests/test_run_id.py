"""Index files, end files and segments of another run are refused: all files of a run contain its id."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.numpy

from tdcore.errors import RunCorrupt
from tdcore.flusher.merge import join_segments
from tdcore.format.layout import said_run_id
from tdcore.rules import run as run_rules
from tdcore.session import RingConfig, Session
from tdcore.trial import create_trial

pytestmark = pytest.mark.timeout(120)


def write(place: Path, value: float, steps: int = 3) -> Path:
    with Session(
        place,
        configuration={},
        framework="numpy",
        framework_version="1",
        ring=RingConfig(ring_bytes=1 << 22),
        flusher="thread",
    ) as session:
        ids = np.array([session.ring.intern("weight", 1)], dtype=np.uint32)
        for step in range(steps):
            data = np.full(1000, value + step, dtype=np.float32)
            session.ring.capture([data], ids, np.array([3], dtype=np.uint8), step, 1, step)
    return place


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return write(tmp_path / "a", 0.0), write(tmp_path / "b", 100.0)


def copy(key: str, source: Path, target: Path) -> None:
    shutil.rmtree(target / key)
    shutil.copytree(source / key, target / key)


def test_every_index_file_and_end_says_the_id_of_its_run(runs: tuple[Path, Path]) -> None:
    run_id = json.loads((runs[0] / "run.json").read_text())["run_id"]
    files = list((runs[0] / "index").rglob("*.parquet"))
    assert {said_run_id(pq.read_metadata(file).metadata) for file in files} == {run_id}
    assert json.loads((runs[0] / "end/worker_0/0000.json").read_text())["run_id"] == run_id
    assert create_trial(runs[0]).tensor("weight").value(2)[0] == 2.0


def test_an_index_of_another_run_is_refused(runs: tuple[Path, Path]) -> None:
    copy("index", runs[1], runs[0])
    copy("data", runs[1], runs[0])
    with pytest.raises(RunCorrupt, match=r"index/worker_0/.* is of run .* copied from another run"):
        create_trial(runs[0])
    with pytest.raises(RunCorrupt, match="copied from another run"):
        run_rules(runs[0], ["all_zero"])


def test_an_end_of_another_run_is_refused(runs: tuple[Path, Path]) -> None:
    copy("end", runs[1], runs[0])
    with pytest.raises(
        RunCorrupt, match=r"end/worker_0/0000\.json: run_id is .*, expected that of run\.json"
    ):
        create_trial(runs[0])


@pytest.mark.parametrize("verify", [True, False])
def test_a_segment_of_another_run_is_refused(runs: tuple[Path, Path], verify: bool) -> None:
    copy("data", runs[1], runs[0])
    trial = create_trial(runs[0], verify=verify)
    with pytest.raises(RunCorrupt, match=r"data/worker_0/.* is of run .* from another run"):
        trial.tensor("weight").value(2)


def test_a_merged_segment_has_the_id_of_its_run(tmp_path: Path) -> None:
    place = write(tmp_path / "run", 0.0, steps=2)
    run_id = json.loads((place / "run.json").read_text())["run_id"]
    segments = [file.read_bytes() for file in (place / "data").rglob("*.safetensors")]
    merged = b"".join(map(bytes, join_segments(segments * 2).parts))
    for segment in (*segments, merged):
        length = int.from_bytes(segment[:8], "little")
        assert json.loads(segment[8 : 8 + length])["__metadata__"] == {"run_id": run_id}
    assert safetensors.numpy.load(merged)


def test_files_that_say_no_id_are_read_as_before(runs: tuple[Path, Path]) -> None:
    for file in (runs[0] / "index").rglob("*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.replace_schema_metadata(None), file)
    end = runs[0] / "end/worker_0/0000.json"
    document = json.loads(end.read_text())
    del document["run_id"]
    end.write_text(json.dumps(document))
    assert create_trial(runs[0]).tensor("weight").value(2)[0] == 2.0
