"""The numbers of the pages other than the heat map, against NumPy on the saved values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.modes import ModeKeys
from tdcore.rules.trace import Trace
from tdcore.trial import create_trial
from tdcore.view.answers import OpenRun, answer
from tests.rules.system_samples import write_step_times
from tests.trial.writer import RunWriter
from tests.view.contract import check, unpacked
from tests.view.some_runs import opened

Floats = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenRun]:
    """Return the run of RUNS of this name."""
    with opened(tmp_path_factory.mktemp("run"), "healthy") as run:
        yield run


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_quantiles_are_within_a_factor_of_two_of_those_of_the_values(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    elements = st.floats(2.0**-38, 2.0**22, width=32) | st.just(0.0) | st.sampled_from([np.nan, -np.inf])
    values = np.array(data.draw(st.lists(elements, min_size=1, max_size=40)), dtype=np.float64)
    root = tmp_path_factory.mktemp("run")
    run = RunWriter(root)
    run.add("w", values, step=0)
    run.flush()
    run.end()
    with opened(root) as found:
        page = answer(found, "histogram", {"name": "w"})
    check(page, "TensorHistogram")
    sizes = np.sort(np.abs(values[np.isfinite(values)]))
    for curve in page["quantiles"]:
        (quantile,) = unpacked(curve["points"]["mean"]).tolist()
        if not len(sizes):
            assert math.isnan(quantile)
            continue
        exact = sizes[max(0, math.ceil(curve["quantile"] * len(sizes)) - 1)]
        assert exact / 2.0001 <= quantile <= exact * 2.0001


@pytest.mark.parametrize("size", [1e12, 1e-20])
def test_quantiles_of_elements_outside_of_the_bins_are_between_the_edge_and_the_extremes(
    tmp_path: Path, size: float
) -> None:
    values = size * np.geomspace(1, 1e6, 101)
    run = RunWriter(tmp_path)
    run.add("w", values, step=0)
    run.flush()
    run.end()
    with opened(tmp_path) as found:
        page = answer(found, "histogram", {"name": "w"})
    quantiles = [unpacked(each["points"]["mean"]).item() for each in page["quantiles"]]
    assert quantiles == sorted(quantiles)
    assert len(set(quantiles)) == len(quantiles)
    assert values.min() * 0.999 <= quantiles[0]
    assert quantiles[-1] <= values.max() * 1.001


def test_the_histogram_has_the_shares_of_all_elements(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.add("w", np.array([0.0, 1.0, 1.5, 4.0, np.nan, 0.0, 0.26, -1.0]), step=0)
    run.add("w", np.array([np.inf, 8.0]), step=1)
    run.flush()
    run.end()
    with opened(tmp_path) as found:
        histogram = answer(found, "histogram", {"name": "w"})["histogram"]
    assert (histogram["first_exponent"], histogram["bins"]) == (-2, 6)
    shares = unpacked(histogram["shares"]).reshape(2, 6)
    assert shares[0].tolist() == [1 / 8, 0, 3 / 8, 0, 1 / 8, 0]
    assert shares[1].tolist() == [0, 0, 0, 0, 0, 1 / 2]
    assert unpacked(histogram["zero_shares"]).tolist() == [1 / 4, 0]
    assert unpacked(histogram["bad_shares"]).tolist() == [1 / 8, 1 / 2]


def test_the_newest_statistics_are_those_of_the_saved_values(healthy: OpenRun) -> None:
    name = "Net_layer3.weight"
    page = answer(healthy, "tensor", {"name": name})
    first = page["rows"][0]
    values = healthy.trial.tensor(name).value(29, ModeKeys.TRAIN).astype(np.float64)
    assert first["at"]["mode_step"] == 29
    expected = {"mean": values.mean(), "std": values.std(), "l2": np.linalg.norm(values), "zero_share": 0.0}
    for each, number in expected.items():
        assert first["values"][each] == pytest.approx(number, rel=1e-9)
    assert [step["mode_step"] for step in page["saved_steps"]] == list(range(30))


@pytest.mark.parametrize(
    ("shape", "kind", "form", "size", "shown"),
    [
        ((), "loss", "number", (1, 1, 1), ""),
        ((7,), "bias", "line", (1, 7, 1), ""),
        ((9000,), "bias", "line", (1, 3000, 1), "every 3rd element"),
        ((3, 5), "weight", "heatmap", (3, 5, 1), ""),
        ((600, 5), "weight", "heatmap", (200, 5, 1), "every 3rd row"),
        ((8, 3, 3, 3), "weight", "heatmap", (8, 27, 1), "8 x 3 x 3 x 3 as 8 x 27"),
        ((4, 16, 7, 6), "output", "heatmap", (7, 6, 1), "slice [0, 0] of 4 x 16 x 7 x 6"),
        ((4, 3, 20, 10), "input", "image", (20, 10, 3), "image 0 of 4"),
        ((1, 20, 10), "input", "image", (20, 10, 1), ""),
        ((2, 20, 10, 3), "input", "image", (20, 10, 3), "image 0 of 2"),
        ((0, 3), "output", "number", (0, 0, 1), "the tensor has no elements"),
    ],
)
def test_a_value_is_drawn_in_the_form_of_its_shape(
    tmp_path: Path, shape: tuple[int, ...], kind: str, form: str, size: tuple[int, ...], shown: str
) -> None:
    values = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    run = RunWriter(tmp_path)
    run.add("t", values, step=0, kind=kind)
    run.flush()
    run.end()
    with opened(tmp_path) as found:
        value = answer(found, "value", {"name": "t"})
    check(value, "Value")
    assert (value["form"], value["shown"]) == (form, shown)
    assert (value["height"], value["width"], value["channels"]) == size
    data = unpacked(value["data"]).reshape(size)
    if form == "image":
        first = values[0] if values.ndim == 4 else values
        first = np.moveaxis(first, 0, -1) if first.shape[0] in (1, 3) else first
        assert np.array_equal(data, first)
    elif shape == (3, 5):
        assert np.array_equal(data[:, :, 0], values)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float8_e4m3fn", "int64", "bool", "complex64", "uint8"]
)
def test_values_of_every_type_are_drawn_and_their_bad_elements_counted(tmp_path: Path, dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = np.array([[1, 0], [1, 1]]).astype(kind)
    if kind.kind in "fcV":
        values[0, 1] = np.nan
    run = RunWriter(tmp_path)
    run.add("t", values, step=0)
    run.flush()
    run.end()
    with opened(tmp_path) as found:
        value = answer(found, "value", {"name": "t"})
    expected = np.abs(values).astype(np.float64)
    assert np.array_equal(unpacked(value["data"]).reshape(2, 2), expected, equal_nan=True)
    assert value["bad"] == int(np.isnan(expected).sum())


def test_the_deviating_rank_is_shown_with_its_distance(tmp_path: Path) -> None:
    with opened(tmp_path, "four_ranks") as run:
        found = answer(run, "ranks", {"name": "gradient/w", "statistic": "l2"})
        table = run.trial.compare_workers(["gradient/w"], column="l2").to_pylist()
    check(found, "Ranks")
    assert found["candidates"] == ["loss", "w", "gradient/w"]
    values = unpacked(found["values"]).reshape(4, 6)
    deviations = unpacked(found["deviations"]).reshape(4, 6)
    for row in table:
        rank = found["workers"].index(row["worker"])
        assert values[rank, row["mode_step"]] == pytest.approx(row["value"], rel=1e-6)
        assert deviations[rank, row["mode_step"]] == pytest.approx(row["deviation"], rel=1e-6)
    assert {each["worker"] for each in found["outliers"]} == {"worker_3"}
    with opened(tmp_path) as run:
        coarse = answer(run, "ranks", {"name": "gradient/w", "statistic": "mean", "columns": "2"})
        table = run.trial.compare_workers(["gradient/w"], column="mean").to_pylist()
    for rank, worker in enumerate(coarse["workers"]):
        for half in range(2):
            mine = [
                row["deviation"] for row in table if row["worker"] == worker and row["mode_step"] // 3 == half
            ]
            furthest = unpacked(coarse["deviations"]).reshape(4, 2)[rank, half]
            assert furthest == pytest.approx(max(mine, key=abs), rel=1e-6)


def test_a_rank_with_nan_is_the_outlier(tmp_path: Path) -> None:
    for rank in range(4):
        run = RunWriter(tmp_path, worker=f"worker_{rank}", world_size=4)
        run.add("loss", np.float32("nan" if rank == 2 else 1.0), kind="loss", step=0)
        run.flush()
        run.end()
    with opened(tmp_path) as run_of_four:
        found = answer(run_of_four, "ranks", {"name": "loss"})
    check(found, "Ranks")
    assert [each["worker"] for each in found["outliers"]] == ["worker_2"]
    assert np.isnan(unpacked(found["values"])).tolist() == [False, False, True, False]


def test_copies_that_are_equal_have_no_outlier_and_parts_are_not_compared(tmp_path: Path) -> None:
    with opened(tmp_path / "a", "four_ranks") as run:
        found = answer(run, "ranks", {"name": "w"})
        assert (found["outliers"], found["text"]) == ([], "")
        assert not unpacked(found["deviations"]).any()
    with opened(tmp_path / "b", "sharded") as run:
        found = answer(run, "ranks", {"name": "w"})
        assert "another part" in found["text"]
        assert np.isnan(unpacked(found["deviations"])).all()


def test_losses_of_all_modes_have_their_own_steps_and_global_steps(healthy: OpenRun) -> None:
    overview = answer(healthy, "overview", {})
    curves = {curve["mode"]: curve for curve in overview["losses"]}
    assert unpacked(curves["TRAIN"]["points"]["step"]).tolist() == list(range(30))
    assert unpacked(curves["EVAL"]["points"]["step"]).tolist() == list(range(6))
    assert unpacked(curves["EVAL"]["global_step"]).tolist() == [10, 11, 22, 23, 34, 35]
    coarse = answer(healthy, "overview", {"columns": "2"})["losses"]
    assert {curve["mode"]: unpacked(curve["global_step"]).tolist() for curve in coarse} == {
        "TRAIN": [0, 17],  # TRAIN step 15
        "EVAL": [10, 23],
    }
    assert [curve["name"] for curve in overview["learning_rates"]] == ["SGD/group_0/lr"]
    rates = unpacked(overview["learning_rates"][0]["points"]["mean"])
    assert rates == pytest.approx([0.1 / (1 + step // 10) for step in range(30)], rel=1e-6)
    assert overview["cost"] == {
        "capture_seconds": 5e-9, "training_seconds": None, "captured_tensors": 3, "captured_bytes": 0,
        "payload_bytes": 0, "rows": 1,
    }  # fmt: skip


def test_the_cost_of_capture_is_the_time_of_the_hook_in_all_steps(tmp_path: Path) -> None:
    trace = Trace()
    run = RunWriter(tmp_path)
    for step in range(4):
        run.add("w", np.ones(2, np.float32), step=step)
        trace.add_step_time(step, forward=6, backward=2, capture=1 + step)
    run.flush()
    write_step_times(tmp_path, trace)
    run.end(totals={"capture_ns": 5})  # without the rest of the hook
    with opened(tmp_path) as found:
        cost = answer(found, "overview", {})["cost"]
    assert cost["capture_seconds"] == pytest.approx(0.01)
    assert cost["training_seconds"] == pytest.approx(0.032)


def test_the_confusion_matrix_counts_the_saved_pairs(healthy: OpenRun) -> None:
    found, alone = (answer(healthy, "predictions", each) for each in ({}, {"step": "19"}))
    check(found, "Predictions")
    trial = create_trial(healthy.path)
    labels, guesses = (
        np.concatenate([trial.tensor(name).value(step, ModeKeys.TRAIN) for step in range(30)])
        for name in ("labels", "predictions")
    )
    expected = np.zeros((3, 3))
    np.add.at(expected, (labels, guesses), 1)
    assert found["classes"] == ["0", "1", "2"]
    assert np.array_equal(unpacked(found["matrix"]).reshape(3, 3), expected)
    assert (found["first"]["mode_step"], found["last"]["mode_step"]) == (0, 29)
    shares = (labels == guesses).reshape(30, 20).mean(axis=1)
    assert unpacked(found["accuracy"]["mean"]) == pytest.approx(shares)
    assert (alone["first"]["mode_step"], alone["last"]["mode_step"]) == (19, 19)
    assert unpacked(alone["matrix"]).sum() == 20
    assert unpacked(alone["accuracy"]["mean"]) == pytest.approx(shares[19:20])


def test_ignored_labels_and_batches_with_nan_are_not_counted(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(3):
        scores = np.eye(3, dtype=np.float32)
        scores[0, 0] = np.nan if step == 1 else 1.0
        for number, values in enumerate((scores, np.array([0, 2, -100]))):
            name = f"CrossEntropyLoss_input_{number}"
            run.add(name, values, kind="input", origin="CrossEntropyLoss", step=step)
    run.flush()
    run.end()
    with opened(tmp_path) as opened_run:
        found = answer(opened_run, "predictions", {})
    check(found, "Predictions")
    assert found["classes"] == ["0", "1", "2"]
    assert unpacked(found["matrix"]).tolist() == [2, 0, 0, 0, 0, 0, 0, 2, 0]
    assert unpacked(found["accuracy"]["mean"]) == pytest.approx([0.5, np.nan, 0.5], nan_ok=True)


def test_runs_are_compared_by_step_and_part_at_the_first_tensor_that_differs(tmp_path: Path) -> None:
    for name, differs in (("one", False), ("same", False), ("other", True)):
        run = RunWriter(tmp_path / name)
        for step in range(5):
            run.add("a", np.full(3, step, np.float32), step=step)
            run.add("b", np.full(3, step + 0.5 * (differs and step >= 3), np.float32), step=step)
            run.add("loss", np.float32(step + (differs and step >= 4)), step=step, kind="loss")
        run.flush()
        run.end()
    with (
        opened(tmp_path / "one") as one,
        opened(tmp_path / "same") as same,
        opened(tmp_path / "other") as other,
    ):
        found = answer([one, same, other], "compare", {})
        partings = answer([one, same, other], "partings", {})
    check(json.loads(json.dumps(partings)), "Partings")
    check(json.loads(json.dumps(found)), "Compare")
    assert (found["name"], found["mode"], found["statistic"]["id"]) == ("loss", "TRAIN", "mean")
    assert [unpacked(each["points"]["mean"]).tolist()[-1] for each in found["curves"]] == [4, 4, 5]
    equal, parted = partings["parts"]
    assert (equal["tensor"], equal["at"]) == ("", None)
    assert "15 tensors of 5 steps are equal" in equal["text"]
    assert (parted["tensor"], parted["at"]["mode_step"]) == ("b", 3)


def test_the_visible_steps_of_a_curve_have_all_of_its_values(tmp_path: Path) -> None:
    run, values = RunWriter(tmp_path), np.random.default_rng(0).random(60)
    for step, value in enumerate(values):
        mode, mode_step = ("TRAIN", step // 2) if step % 2 == 0 else ("EVAL", step // 2)
        run.add("loss", np.float64(value), kind="loss", step=step, mode=mode, mode_step=mode_step)
        run.add("lr", np.float64(step), kind="hyperparameter", step=step, mode=mode, mode_step=mode_step)
    run.flush()
    run.end()
    with opened(tmp_path) as found:
        both = answer(found, "curves", {"from": "10", "to": "19", "columns": "50"})
        train = answer(found, "curves", {"mode": "TRAIN", "from": "3", "to": "5"})
        rates = answer(found, "curves", {"group": "learning_rates", "from": "58"})
    for each in (both, train, rates):
        check(each, "VisibleCurves")
    assert [each["mode"] for each in both["curves"]] == ["TRAIN", "EVAL"]
    assert unpacked(both["curves"][0]["global_step"]).tolist() == [10, 12, 14, 16, 18]
    shown = unpacked(both["curves"][1]["points"]["mean"])
    assert shown.tolist() == pytest.approx(values[11:20:2].tolist())
    (curve,) = train["curves"]
    assert unpacked(curve["points"]["step"]).tolist() == [3, 4, 5]
    assert [each["name"] for each in rates["curves"]] == ["lr", "lr"]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_where_runs_part_does_not_depend_on_the_blocks_that_are_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    roots = [tmp_path_factory.mktemp("run") for _ in range(2)]
    changed = data.draw(st.sets(st.tuples(st.integers(0, 9), st.sampled_from(["a", "b"])), max_size=3))
    for number, root in enumerate(roots):
        run = RunWriter(root)
        for step in range(10):
            for name in ("a", "b"):
                mode = "TRAIN" if step % 3 else "EVAL"
                value = float(step) + (number if (step, name) in changed else 0)
                run.add(name, np.float64(value), step=step, mode=mode, mode_step=step)
        run.flush()
        run.end()
    found = []
    for rows in (1, 7, 10**6):
        with pytest.MonkeyPatch.context() as patch, opened(roots[0]) as one, opened(roots[1]) as other:
            patch.setattr("tdcore.view.answers.parting._FIRST_ROWS", rows)
            found.append(answer([one, other], "partings", {})["parts"][0])
    assert [(each["tensor"], each["at"]) for each in found] == [(found[0]["tensor"], found[0]["at"])] * 3
    first = min(changed, default=None)
    assert found[0]["tensor"] == ("" if first is None else first[1])
    if first is None:
        assert all("20 tensors of 10 steps are equal" in each["text"] for each in found)
    else:
        assert found[0]["at"]["step"] == first[0]


def test_phases_and_machines_have_the_times_of_the_chosen_worker(tmp_path: Path) -> None:
    with opened(tmp_path, "timed") as run:
        first, second = (answer(run, "time", {"worker": f"worker_{rank}"}) for rank in range(2))
        late = answer(run, "time", {"from": "12"})
    for found in (first, second, late):
        check(found, "Time")
    train, held_out = first["modes"]
    assert (train["mode"], train["phases"], train["seconds"]) == (
        "TRAIN", ["backward", "data", "forward"], pytest.approx([0.06, 0.045, 0.03]),
    )  # fmt: skip
    assert held_out["phases"] == ["data", "forward"]
    assert unpacked(train["milliseconds"]).reshape(3, 15)[:, 0].tolist() == [4, 3, 2]
    assert unpacked(train["step"]["mean"]).tolist() == [9] * 15
    assert unpacked(second["modes"][0]["step"]["mean"]).tolist() == [10] * 15
    assert unpacked(late["modes"][0]["steps"]).tolist() == [12, 13, 14]
    (host,) = first["hosts"]
    series = {each["name"]: each for each in host["series"]}
    assert unpacked(series["GPU 0: utilisation"]["points"]["mean"]).tolist() == [
        50.0 + step for step in range(20)
    ]
    assert unpacked(series["CPU of the training, worker_1"]["points"]["mean"]).tolist() == [100.0] * 20
    assert unpacked(series["memory of the machine"]["points"]["mean"]).tolist() == [6.0] * 20
    reads = series["disk reads"]
    assert (reads["unit"], unpacked(reads["points"]["mean"]).tolist()) == ("MB/s", [2.0] * 19)
    assert unpacked(reads["points"]["step"])[0] == pytest.approx(0.5)
