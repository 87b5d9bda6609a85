"""Many runs judged by the same rules: processes, clusters, broken runs, search for runs below a folder."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tdcore.errors import ConfigError, SinkError
from tdcore.rules import ExplodingTensor, RuleProtocol, VanishingGradient, sweep
from tdcore.rules.loading import load_rule
from tdcore.rules.sweep import SweepEntry, SweepReport, find_runs
from tdcore.rules.sweep_engines import ENGINES
from tdcore.rules.sweep_task import SweepTask
from tests.rules.a_rule_of_mine import EveryNth
from tests.trial.writer import RunWriter

RULES = ["vanishing_gradient", "exploding_tensor"]
RUNS = 20


def small_run(place: Path, values: float = 1.0, *, end: bool = True) -> None:
    writer = RunWriter(place)
    for step in range(3):
        writer.add("gradient/w", np.full(4, values, np.float32), step=step, kind="gradient")
    writer.flush()
    if end:
        writer.end()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write runs: run 3 vanishes, run 5 explodes, run 7 is broken, run 9 is live; the others are healthy."""
    folder = tmp_path_factory.mktemp("runs")
    for number in range(RUNS):
        values = {3: 1e-9, 5: float("nan")}.get(number, 1.0)
        small_run(folder / f"run-{number:02d}", values, end=number != 9)
    (broken,) = (folder / "run-07" / "index" / "worker_0").glob("*.parquet")
    broken.write_bytes(b"not parquet")
    return folder


def expect_all(report: SweepReport, runs: Path) -> None:
    assert [entry.place for entry in report.entries] == [str(runs / f"run-{n:02d}") for n in range(RUNS)]
    codes = {number: entry.exit_code for number, entry in enumerate(report.entries) if entry.exit_code}
    assert codes == {3: 1, 5: 1, 7: 3, 9: 4}
    assert report.exit_code == 1
    assert ".parquet" in report.entries[7].error
    assert report.entries[7].report is None
    verdicts = report.entries[3].report.verdicts if report.entries[3].report else ()
    assert [verdict.occurrences for verdict in verdicts] == [3, 0]
    assert report.summary == (
        "20 runs: 2 with issues, 1 could not be judged, 1 in progress, 16 without issue"
    )


def test_runs_are_judged_one_after_the_other_in_this_process(runs: Path) -> None:
    seen: list[SweepEntry] = []
    report = sweep(runs, RULES, engine="serial", write_findings=False, on_run=seen.append)
    expect_all(report, runs)
    assert seen == list(report.entries)


def test_processes_give_the_same_in_the_order_of_the_runs(runs: Path) -> None:
    seen: list[SweepEntry] = []
    rules: list[RuleProtocol | type[RuleProtocol]] = [VanishingGradient(), ExplodingTensor]
    report = sweep(runs, rules, workers=2, write_findings=False, on_run=seen.append)
    expect_all(report, runs)
    assert sorted(entry.place for entry in seen) == [entry.place for entry in report.entries]


def test_findings_are_kept_in_each_run(tmp_path: Path) -> None:
    small_run(tmp_path / "runs" / "a", float("nan"))
    sweep(tmp_path / "runs", [ExplodingTensor()], engine="serial")
    assert (tmp_path / "runs" / "a" / "findings" / "ExplodingTensor.jsonl").exists()


class Deadly(EveryNth):
    """A rule that kills its process at the run of this name."""

    def check(self, window: Any) -> Any:
        if (window.columns.floats("max") == 2.0).any():
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().check(window)


def test_a_run_that_kills_its_process_is_an_error_and_the_others_are_judged(tmp_path: Path) -> None:
    for number in range(6):
        small_run(tmp_path / f"run-{number}", 2.0 if number == 1 else 1.0)
    spec = f"{Path(__file__)}::Deadly:nth=3"
    report = sweep(tmp_path, [spec], workers=2, write_findings=False)
    errors = [entry.error for entry in report.entries]
    assert [bool(error) for error in errors] == [False, True, False, False, False, False]
    assert "died" in errors[1]
    assert [entry.exit_code for entry in report.entries] == [1, 3, 1, 1, 1, 1]


class Unsendable(EveryNth):
    """A rule whose finding cannot be pickled, at the run of this name."""

    def check(self, window: Any) -> Any:
        for finding in EveryNth.check(self, window):
            if (window.columns.floats("max") == 2.0).any():
                why = type("Local", (str,), {})("nth")
                yield replace(finding, why=why)


def test_a_report_that_cannot_be_sent_back_is_an_error_and_the_others_are_judged(tmp_path: Path) -> None:
    for number in range(4):
        small_run(tmp_path / f"run-{number}", 2.0 if number == 1 else 1.0)
    report = sweep(tmp_path, [f"{Path(__file__)}::Unsendable:nth=3"], workers=2, write_findings=False)
    assert [entry.exit_code for entry in report.entries] == [0, 3, 0, 0]
    assert "pickle" in report.entries[1].error.lower()


def test_what_an_engine_has_started_is_ended_when_the_caller_gives_up(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def engine(task: SweepTask, places: list[str], *_: object) -> Iterator[tuple[int, SweepEntry]]:
        try:
            yield 0, task(places[0])
        finally:
            ended.append(True)

    def give_up(entry: SweepEntry) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cast("dict[str, object]", ENGINES), "serial", engine)
    with pytest.raises(KeyboardInterrupt) as error:
        sweep(runs, RULES, engine="serial", write_findings=False, on_run=give_up)
    assert ended  # not only when the error, which holds a reference to it, is freed
    del error


def test_places_that_cannot_be_looked_into_are_entries_and_the_others_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path / "good")

    def below(place: str) -> list[str]:
        raise SinkError("Access denied")

    monkeypatch.setattr(sys.modules[find_runs.__module__], "runs_below", below)
    report = sweep([tmp_path / "good", tmp_path / "bad"], RULES, engine="serial", write_findings=False)
    assert [entry.exit_code for entry in report.entries] == [0, 3]


def test_folders_that_may_not_be_read_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path / "a" / "good")
    (tmp_path / "lost+found").mkdir()
    listing = Path.iterdir

    def refusing(folder: Path) -> Any:
        if folder.name == "lost+found":
            raise PermissionError(13, "Permission denied")
        return listing(folder)

    monkeypatch.setattr(Path, "iterdir", refusing)
    assert find_runs(tmp_path) == [str(tmp_path / "a" / "good")]


def test_an_error_of_a_rule_is_a_verdict_of_that_run(runs: Path) -> None:
    report = sweep(runs / "run-00", [EveryNth(nth=0)], engine="serial", write_findings=False)
    assert report.exit_code == 3
    assert report.entries[0].error == ""
    assert report.summary == "1 run: 1 not all evaluable"


@pytest.mark.slow
def test_dask_judges_them_on_a_local_cluster_and_on_one_that_is_there(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    expect_all(sweep(runs, RULES, engine="dask", workers=1, write_findings=False), runs)
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        expect_all(sweep(runs, RULES, engine="dask", cluster=client, write_findings=False), runs)
        expect_all(sweep(runs, RULES, engine="dask", write_findings=False), runs)
        address = cluster.scheduler_address
        expect_all(sweep(runs, RULES, engine="dask", cluster=address, write_findings=False), runs)
        assert client.status == "running"
        submit = client.submit
        started: list[Any] = []
        waiting: list[int] = []

        def counted(*arguments: Any, **options: Any) -> Any:
            waiting.append(sum(future.status == "pending" for future in started))
            started.append(submit(*arguments, **options))
            return started[-1]

        monkeypatch.setattr(client, "submit", counted)
        expect_all(sweep(runs, RULES, engine="dask", cluster=client, workers=2, write_findings=False), runs)
        assert len(started) == RUNS
        assert max(waiting) == 1


@pytest.mark.slow
def test_ray_judges_them_on_a_local_cluster(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    report = sweep(runs, RULES, engine="ray", workers=1, write_findings=False)
    expect_all(report, runs)
    assert not ray.is_initialized()


@pytest.mark.slow
def test_ray_is_told_to_cancel_what_nobody_waits_for(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    cancel = ray.cancel
    cancelled: list[Any] = []

    def counted(reference: Any) -> None:
        cancelled.append(reference)
        cancel(reference)

    def give_up(entry: SweepEntry) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "cancel", counted)
    try:
        with pytest.raises(KeyboardInterrupt):
            sweep(runs, RULES, engine="ray", write_findings=False, on_run=give_up)
        assert len(cancelled) == RUNS - 1
        assert ray.is_initialized()  # it belongs to the caller
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(cancelled[-1])
    finally:
        ray.shutdown()


def test_places_are_runs_folders_and_patterns_each_once(runs: Path) -> None:
    found = find_runs([runs / "run-01", str(runs / "run-0[0-2]"), runs.parent / runs.name, runs / "nothing"])
    names = [Path(place).name for place in found]
    assert names[:3] == ["run-01", "run-00", "run-02"]
    assert names[-1] == "nothing"
    assert len(names) == RUNS + 1


def test_a_place_without_a_run_is_an_entry(tmp_path: Path) -> None:
    report = sweep([tmp_path / "nothing"], RULES, engine="serial")
    assert "there is no run at" in report.entries[0].error


@pytest.mark.parametrize(
    ("places", "rules", "options", "message"),
    [
        ("runs/none-*", RULES, {}, "there are no runs at"),
        ("runs", [], {}, "no rule was given"),
        ("runs", ["vanishing"], {}, "there is no rule 'vanishing'"),
        ("runs", RULES, {"engine": "slurm"}, "engine must be one of dask, processes, ray, serial"),
        ("runs", RULES, {"workers": 0}, "workers must be at least 1"),
        ("runs", RULES, {"cluster": "tcp://host"}, "cluster is only for the engines ray and dask"),
    ],
)
def test_wrong_arguments_are_refused(places: Any, rules: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep(places, rules, **options)


def test_rules_that_cannot_be_sent_are_refused_at_once(runs: Path) -> None:
    class Local(EveryNth):
        pass

    with pytest.raises(ConfigError, match=r"cannot be sent to other processes"):
        sweep(runs, [Local()])


def test_an_engine_that_is_not_installed_says_what_to_install(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "tdcore-capture\[ray\]"'):
        sweep(runs, RULES, engine="ray")


def test_reports_are_plain_json(runs: Path) -> None:
    import json

    report = sweep(runs / "run-0[5-7]", RULES, engine="serial", write_findings=False)
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert [run["exit_code"] for run in document["runs"]] == [1, 0, 3]
    assert load_rule(RULES[0]) == VanishingGradient()


def test_the_earlier_name_of_an_entry_is_an_alias_with_a_warning() -> None:
    module = importlib.import_module("tdcore.rules.sweep")
    with pytest.warns(DeprecationWarning, match="Entry is now SweepEntry"):
        assert module.Entry is SweepEntry
