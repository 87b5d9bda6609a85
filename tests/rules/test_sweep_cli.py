"""`tdcore rules sweep`, and `tdcore ls` of a bucket with several runs."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tdcore.cli import main
from tdcore.errors import ConfigError
from tdcore.rules import sweep
from tdcore.rules.sweep import find_runs
from tdcore.sinks import open_sink
from tdcore.trial.run_search import runs_below
from tests.s3.fixtures import Place
from tests.s3.servers import StubServer
from tests.trial.writer import RunWriter


def small_run(place: Path, value: float) -> Path:
    writer = RunWriter(place)
    writer.add("gradient/w", np.full(4, value, np.float32), step=0, kind="gradient")
    writer.flush()
    writer.end()
    return place


def tdcore(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tdcore.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_sweep_prints_runs_by_rules_and_a_summary_and_ends_with_the_worst_code(tmp_path: Path) -> None:
    small_run(tmp_path / "good", 1.0)
    small_run(tmp_path / "bad", float("nan"))
    rules = ["-r", "exploding_tensor", "-r", "vanishing_gradient"]
    done = tdcore("rules", "sweep", tmp_path, *rules, "--engine", "serial")
    assert done.returncode == 1, done.stderr
    assert "ExplodingTensor" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 runs: 1 with issues, 1 without issue"
    done = tdcore("rules", "sweep", tmp_path / "good", tmp_path / "none", *rules, "-j", 2, "--json")
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert [run["exit_code"] for run in document["runs"]] == [0, 3]
    assert "there is no run" in document["runs"][1]["error"]
    assert document["summary"] == "2 runs: 1 could not be judged, 1 without issue"


@pytest.mark.parametrize("arguments", [["--engine", "slurm"], ["--jobs", "0"], ["--attempt", "x"], []])
def test_wrong_usage_of_sweep_is_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    rules = ["-r", "exploding_tensor"] if arguments else []
    monkeypatch.setattr(sys, "argv", ["tdcore", "rules", "sweep", str(tmp_path), *rules, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_runs_under_a_prefix_of_a_bucket_are_found_listed_and_judged(
    stub: StubServer, s3_prefix: str, tmp_path: Path
) -> None:
    place = Place(server=stub, prefix=s3_prefix)
    for name in ("b", "deep/a"):
        run = small_run(tmp_path / name, float("nan") if name == "b" else 1.0)
        with closing(open_sink(place.url(f"runs/{name}"))) as sink:
            for file in filter(Path.is_file, run.rglob("*")):
                sink.put(str(file.relative_to(run)), [file.read_bytes()])
    url = place.url("runs")
    found = runs_below(url)
    assert [each.partition("?")[0].rpartition("/runs/")[2] for each in found] == ["b", "deep/a"]
    assert runs_below(found[0]) == []
    report = sweep(url, ["exploding_tensor"], engine="serial", write_findings=False)
    assert [entry.exit_code for entry in report.entries] == [1, 0]
    listed = tdcore("ls", url, "--json")
    assert [run["rows"] for run in json.loads(listed.stdout)["runs"]] == [1, 1]


def test_a_pattern_of_prefixes_in_a_bucket_names_the_runs_that_match(
    stub: StubServer, s3_prefix: str, tmp_path: Path
) -> None:
    place = Place(server=stub, prefix=s3_prefix)
    run = small_run(tmp_path / "run", 1.0)
    for name in ("runs/lr-1", "runs/lr-2/seed-0", "runs/other", "lr-3"):
        with closing(open_sink(place.url(name))) as sink:
            for file in filter(Path.is_file, run.rglob("*")):
                sink.put(str(file.relative_to(run)), [file.read_bytes()])

    def found(pattern: str) -> list[str]:
        urls = [each.partition("?")[0] for each in find_runs(place.url(pattern))]
        return [url.rpartition(f"/{s3_prefix}/")[2] for url in urls]

    assert found("runs/*") == ["runs/lr-1", "runs/lr-2/seed-0", "runs/other"]
    assert found("runs/lr-*") == ["runs/lr-1", "runs/lr-2/seed-0"]
    assert found("runs/*/seed-[0-9]") == ["runs/lr-2/seed-0"]
    assert found("*/lr-1") == ["runs/lr-1"]
    with pytest.raises(ConfigError, match="there are no runs"):
        found("runs/none-*")
    swept = tdcore("rules", "sweep", place.url("runs/lr-*"), "-r", "exploding_tensor", "--json", "--no-write")
    assert len(json.loads(swept.stdout)["runs"]) == 2


def test_a_pattern_in_the_name_of_a_bucket_is_refused() -> None:
    with pytest.raises(ConfigError, match="name of a bucket cannot be a pattern"):
        find_runs("s3://buck*/runs")
