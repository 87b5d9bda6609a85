"""Every answer for runs of many kinds: its form, its defaults, and errors of its parameters."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.errors import ConfigError, TdcoreError
from tdcore.trial import create_trial
from tdcore.view.answers import REQUESTS, OpenRun, answer, run_line, unreadable
from tdcore.view.answers.names import matching
from tests.trial.writer import RunWriter
from tests.view.contract import check, unpacked
from tests.view.some_runs import HOSTILE, RUNS

TYPES = {name: name.capitalize() for name in REQUESTS} | {
    "tensor": "TensorPage",
    "histogram": "TensorHistogram",
    "curves": "VisibleCurves",
}
KEPT = Path(__file__).parents[1] / "data" / "run_v1"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of each run."""
    root = tmp_path_factory.mktemp("runs")
    for name, write in RUNS.items():
        write(root / name)
    shutil.copytree(KEPT, root / "kept")
    return {name: root / name for name in [*RUNS, "kept"]}


@pytest.fixture
def opened(places: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[OpenRun]:
    """Return the run of the test's parameter."""
    name = request.param
    with closing(OpenRun(name, str(places[name]))) as run:
        yield run


every_run = pytest.mark.parametrize("opened", [*RUNS, "kept"], indirect=True)


def requested(run: OpenRun, request_name: str, /, **parameters: str) -> dict[str, Any]:
    """Return an answer, after a check of its type and of its JSON."""
    found = answer(run, request_name, parameters)
    check(found, TYPES[request_name])
    return json.loads(json.dumps(found, allow_nan=False))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", sorted(REQUESTS))
@every_run
def test_every_request_without_parameters_has_an_answer_of_its_type(opened: OpenRun, name: str) -> None:
    if name in ("tensor", "histogram", "value") and opened.name == "empty":
        with pytest.raises(ConfigError, match="the run has no tensors"):
            requested(opened, name)
    else:
        requested(opened, name)


@every_run
def test_every_offered_choice_of_the_heat_map_has_an_answer(opened: OpenRun) -> None:
    first = requested(opened, "layers")
    for kind in first["kinds"]:
        of_kind = requested(opened, "layers", kind=kind)
        for statistic in of_kind["statistics"]:
            for mode in of_kind["modes"]:
                found = requested(opened, "layers", kind=kind, statistic=statistic["id"], mode=mode)
                cells = len(found["rows"]) * len(unpacked(found["first_steps"]))
                for name in ("mean", "min", "max", "flags"):
                    assert len(unpacked(found[name])) == cells
        for worker in of_kind["workers"]:
            requested(opened, "layers", kind=kind, worker=worker)


@every_run
def test_every_listed_tensor_has_a_page_and_values_at_each_of_its_saved_steps(opened: OpenRun) -> None:
    for line in requested(opened, "tensors")["tensors"]:
        modes = requested(opened, "tensor", name=line["name"])["modes"]
        for mode in modes:
            page = requested(opened, "tensor", name=line["name"], mode=mode)
            for step in page["saved_steps"]:
                value = requested(opened, "value", name=line["name"], mode=mode, step=str(step["mode_step"]))
                assert value["text"] == "" or opened.name == "sharded"  # its last step lacks a part
                size = value["height"] * value["width"] * value["channels"]
                assert len(unpacked(value["data"])) == size


def test_the_first_page_of_a_run_with_gradients_is_their_magnitude(places: dict[str, Path]) -> None:
    with closing(OpenRun("healthy", str(places["healthy"]))) as run:
        found = requested(run, "layers")
    assert (found["kind"], found["mode"], found["statistic"]["id"]) == ("gradient", "TRAIN", "abs_mean")
    assert [row["name"] for row in found["rows"]] == [f"gradient/Net_layer{at}.weight" for at in range(12)]


def test_tensors_are_in_the_order_of_the_model(places: dict[str, Path]) -> None:
    with closing(OpenRun("healthy", str(places["healthy"]))) as run:
        names = [each["name"] for each in requested(run, "tensors")["tensors"]]
    weights = [f"Net_layer{at}.weight" for at in range(12)]
    assert [name for name in names if name in weights] == weights
    outputs = [name for name in names if name.endswith("relu_output_0")]
    assert outputs == [f"layer{at}.relu_output_0" for at in range(12)]


def test_a_pattern_takes_linear_time() -> None:
    names = ["transformer.h.0.attn.c_attn." * 100]
    assert matching(names, r"(\w+\.?)+bias$") == []  # backtracking would not end


PATTERNS = json.loads((Path(__file__).parents[2] / "web" / "test" / "patterns.json").read_text())


@pytest.mark.parametrize(("pattern", "name", "expected"), PATTERNS)
def test_a_pattern_has_the_meaning_that_it_has_in_a_page_and_in_python(
    pattern: str, name: str, expected: bool | str
) -> None:
    if expected == "error":
        with pytest.raises(ConfigError, match=r"regular expression|do not support"):
            matching([name], pattern)
        return
    assert (matching([name], pattern) == [name]) is expected
    assert bool(re.search(pattern, name)) is expected


def test_an_error_of_the_rules_is_a_notice(places: dict[str, Path]) -> None:
    with closing(OpenRun("healthy", str(places["healthy"]))) as run:
        run.rules_error = "the process has ended"
        texts = [each["text"] for each in requested(run, "overview")["notices"]]
        assert "the rules cannot judge the newest data: the process has ended" in texts


def test_a_pattern_chooses_names(places: dict[str, Path]) -> None:
    with closing(OpenRun("healthy", str(places["healthy"]))) as run:
        names = [row["name"] for row in requested(run, "layers", pattern="layer1[01]", kind="weight")["rows"]]
        assert names == ["Net_layer10.weight", "Net_layer11.weight"]
        assert requested(run, "layers", pattern="no such name")["rows"] == []
        with pytest.raises(ConfigError, match="is not a regular expression"):
            answer(run, "tensors", {"pattern": "("})


@pytest.mark.parametrize(
    ("request_name", "parameters", "message"),
    [
        ("layer", {}, "no request 'layer'.*did you mean 'layers'"),
        ("layers", {"kindd": "x"}, "'layers' has no parameter 'kindd'; it has columns, .*kind"),
        (
            "layers",
            {"kind": "gradients"},
            "kind of 'layers' is 'gradients'; possible: .*did you mean 'gradient'",
        ),
        ("layers", {"statistic": "l3"}, "statistic of 'layers' is 'l3'; possible: abs_mean, l2"),
        ("layers", {"mode": "EVAL"}, "mode of 'layers' is 'EVAL'; possible: TRAIN"),
        ("layers", {"worker": "worker_9"}, "worker of 'layers' is 'worker_9'; possible: worker_0"),
        ("layers", {"columns": "0"}, "columns of 'layers' is '0'; it is a whole number from 1 to 4,096"),
        ("layers", {"columns": "1e9"}, "columns of 'layers' is '1e9'"),
        ("layers", {"from": "9", "to": "3"}, "to of 'layers' is '3'; it must be 9 or more"),
        ("tensor", {"name": "../../etc/passwd"}, "name of 'tensor' is .*possible: "),
        ("value", {"step": "\u0663"}, "step of 'value' is"),
    ],
)
def test_a_wrong_parameter_is_refused_with_the_possible_values(
    places: dict[str, Path], request_name: str, parameters: dict[str, str], message: str
) -> None:
    with (
        closing(OpenRun("healthy", str(places["healthy"]))) as run,
        pytest.raises(ConfigError, match=message),
    ):
        answer(run, request_name, parameters)


def test_a_value_that_was_not_saved_is_explained(places: dict[str, Path]) -> None:
    with closing(OpenRun("healthy", str(places["healthy"]))) as run:
        found = requested(run, "value", name="gradient/Net_layer3.weight", step="4")
        assert "was saved without its values" in found["text"]
        assert unpacked(found["data"]).size == 0
        assert "nothing was saved" in requested(run, "value", name="labels", step="999")["text"]


def test_an_absent_tensor_has_its_reason(places: dict[str, Path]) -> None:
    with closing(OpenRun("x", str(places["without_statistics"]))) as run:
        page = requested(run, "tensor", name="gradient/w")
        assert page["absent"] == "no backward reached it in this step"
        assert requested(run, "histogram", name="gradient/w")["histogram"] is None
        flags = unpacked(requested(run, "layers", kind="gradient")["flags"])
        assert flags.tolist() == [8, 8, 8]


def test_the_newest_attempt_replaces_the_steps_of_the_earlier_one(places: dict[str, Path]) -> None:
    with closing(OpenRun("x", str(places["two_attempts"]))) as run:
        overview = requested(run, "overview")
    (loss,) = overview["losses"]
    assert unpacked(loss["points"]["step"]).tolist() == list(range(8))
    assert unpacked(loss["points"]["mean"]).tolist() == [0, 1, 2, 103, 104, 105, 106, 107]
    assert [(each["attempt"], each["clean"], each["reason"]) for each in overview["attempts"]] == [
        (0, False, "killed"),
        (1, True, "closed"),
    ]


def test_hostile_texts_are_passed_on_unchanged_and_malformed_findings_are_left_out(
    places: dict[str, Path],
) -> None:
    with closing(OpenRun("x", str(places["hostile"]))) as run:
        overview = requested(run, "overview")
        names = [row["name"] for row in requested(run, "tensors")["tensors"]]
    (finding,) = [each for each in overview["findings"] if each["code"] == "X"]
    assert finding["tensor"] == finding["why"] == "</script><script>alert(1)</script>"
    assert finding["at"]["mode"] == "GLOBAL"
    assert f"{HOSTILE}0" in names


def test_a_line_of_the_list_of_runs_has_the_error_of_a_run_that_cannot_be_read(
    places: dict[str, Path], tmp_path: Path
) -> None:
    with closing(OpenRun("x", str(places["two_attempts"]))) as run:
        line = run_line(run)
    check(line, "RunLine")
    assert (line["steps"], line["workers"], line["rows"]) == ({"TRAIN": 8}, 1, 22)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(TdcoreError) as caught:
        OpenRun("broken", str(tmp_path))
    broken = unreadable("broken", caught.value)
    check(broken, "RunLine")
    assert "run.json is not JSON" in broken["error"]


def test_answers_contain_new_rows_after_the_run_was_read_again(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    with closing(OpenRun("x", str(tmp_path / "run"))) as run:
        assert requested(run, "tensors")["tensors"] == []
        writer.add("loss", 1.0, step=0, kind="loss")
        writer.flush()
        run.trial.refresh()
        assert [each["name"] for each in requested(run, "tensors")["tensors"]] == ["loss"]


def test_judging_finds_the_fault_and_writes_nothing(places: dict[str, Path]) -> None:
    place = places["nan_everywhere"]
    before = sorted(place.rglob("*"))
    with closing(OpenRun("x", str(place))) as run:
        assert requested(run, "rules") == {"verdicts": [], "judged": "stale"}
        run.judge()
        rules = requested(run, "rules")
        overview = requested(run, "overview")
        layers = requested(run, "layers", kind="weight")
    assert rules["judged"] == "now"
    issues = {each["rule"] for each in rules["verdicts"] if each["status"] == "issue"}
    assert "FirstNonFinite" in issues
    assert all(each["title"] for each in rules["verdicts"])
    assert overview["verdicts"]["issue"] == len(issues)
    assert overview["run"]["findings"] == len(overview["findings"]) > 0
    assert layers["outlines"] or layers["first_bad"]
    assert sorted(place.rglob("*")) == before
    assert create_trial(place).findings() == []


@pytest.mark.parametrize("backward", [True, False], ids=["backward order", "order of parameters"])
@pytest.mark.parametrize("saved", ["all", "some", "none"])
def test_gradients_are_in_the_order_of_the_model_in_whichever_order_they_were_recorded(
    tmp_path: Path, backward: bool, saved: str
) -> None:
    names = [f"layer{at}.{part}" for at in range(12) for part in ("kernel", "offset")]
    run = RunWriter(tmp_path)
    for name in names:
        if saved == "all" or (saved == "some" and name.endswith("kernel")):
            run.add(name, np.ones(2, np.float32), step=0)
    for name in reversed(names) if backward else names:
        run.add(f"gradient/{name}", np.ones(2, np.float32), step=0, kind="gradient")
    run.flush()
    run.end()
    with closing(OpenRun("x", str(tmp_path))) as opened_run:
        rows = requested(opened_run, "layers", kind="gradient")["rows"]
    assert [row["name"] for row in rows] == [f"gradient/{name}" for name in names]


def test_an_attempt_has_not_ended_while_one_of_its_workers_runs(tmp_path: Path) -> None:
    names = ["worker_0", "worker_1"]
    ranks = [RunWriter(tmp_path, worker=name, world_size=2, workers=names) for name in names]
    for run in ranks:
        run.add("loss", 1.0, step=0, kind="loss")
        run.flush()
    ranks[0].end(ended_ns=7)
    with closing(OpenRun("x", str(tmp_path))) as opened_run:
        (attempt,) = requested(opened_run, "overview")["attempts"]
        assert (attempt["clean"], attempt["ended_ns"], attempt["world_size"]) == (None, None, 2)
        ranks[1].end(ended_ns=9)
        opened_run.trial.refresh()
        (attempt,) = requested(opened_run, "overview")["attempts"]
    assert (attempt["clean"], attempt["ended_ns"]) == (True, 9)
