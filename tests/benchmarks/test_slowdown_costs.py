"""From step times to slowdowns: the computations of the slowdown benchmark."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.slowdown.cells import Cell, saved_steps, schedule
from benchmarks.slowdown.costs import Interval, Pair, bootstrap, estimate, fit, pairs_of, summarize


def cell(**changes: Any) -> Cell:
    settings = {"model": "mlp", "tool": "tdcore", "collection": "all", "interval": 2, "block": 6, "pairs": 3}
    return Cell(**{**settings, **changes})


def pair(on: list[float], off: list[float], saved: list[int]) -> Pair:
    return Pair(on=on, off=off, saved=saved, others=0.0, cpu=0.0, left_behind=0.0)


def result(
    *, step: float = 0.1, stall: float = 0.02, others: float = 0.0, interval: int = 2, **changes: Any
) -> dict[str, Any]:
    """Return the result of a worker whose saved steps take `stall` seconds longer."""
    of = cell(interval=interval)
    blocks = [
        {
            "start": block.start,
            "saved": list(block.saved),
            "times_s": [step + stall * (i in block.saved) for i in range(block.start, block.end)],
            "cpu_s": (block.end - block.start) * 0.2 + len(block.saved) * 0.5,
            "left_behind_s": 0.0,
            "others": others,
            "memory": 100,
        }
        for block in schedule(of)
    ]
    return {
        "cell": of.to_json_dict(),
        "warm_up": blocks[0],
        "blocks": blocks[1:],
        "tool": {"drops": 0},
        "tensors": 10,
        "tensor_bytes": 10**6,
        "files": 3,
        "written_bytes": 13 * 10**6,
        "limit_s": 0.001,
        "disk_bytes_per_s": 1e9,
        **changes,
    }


def test_blocks_with_saving_and_without_take_turns() -> None:
    blocks = schedule(cell(warm_up=2))
    assert [len(block.saved) for block in blocks] == [2, 3, 0, 0, 3, 3, 0]


def test_no_step_is_left_out_or_trained_twice() -> None:
    blocks = schedule(cell(warm_up=2))
    assert [block.start - block.lead_in for block in blocks] == [0, *(block.end for block in blocks[:-1])]


def test_saved_steps_lie_an_interval_apart_and_never_in_a_lead_in() -> None:
    blocks = schedule(cell(warm_up=0, interval=3, block=6, pairs=2, plain=4))
    (first, second) = [block for block in blocks if block.saved]
    assert first.saved == (first.start, first.start + 3)
    assert saved_steps(blocks) == [*first.saved, *second.saved]


def test_at_long_intervals_the_slowdown_is_that_of_each_interval_against_its_quiet_half() -> None:
    block = pair([1.5, 1.5, 1.0, 1.0, 3.0, 2.0, 2.0, 2.0], [9.0], [0, 4])
    assert block.period_ratios(4) == pytest.approx([1.25, 1.125])


def test_an_interval_that_the_block_cuts_off_gives_no_ratio() -> None:
    assert pair([1.0, 1.0, 1.0, 2.0], [1.0], [3]).period_ratios(4) == []


def test_a_block_that_is_no_multiple_of_the_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of interval, got block=6, interval=4"):
        cell(interval=4)


def test_an_unknown_collection_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"one of all, weights, .* got 'everything'"):
        cell(collection="everything")


def test_the_slowdown_of_a_pair_is_the_ratio_of_its_mean_steps() -> None:
    assert pair([1.5, 1.0], [1.0, 1.0], [0]).ratio == pytest.approx(1.25)


def test_a_stall_is_taken_from_the_unsaved_neighbours_so_that_drift_does_no_harm() -> None:
    drifting = [1.0 + 0.01 * i + 0.5 * (i in (1, 3)) for i in range(5)]
    assert pair(drifting, [9.0], [1, 3]).stalls == pytest.approx([0.5, 0.5])


def test_where_every_step_is_saved_the_stall_is_taken_from_the_block_without_saving() -> None:
    assert pair([1.5, 1.6], [1.0, 1.0, 1.2], [0, 1]).stalls == pytest.approx([0.5, 0.6])


def test_the_bootstrap_interval_holds_the_median_and_is_the_same_every_time() -> None:
    values = [random.Random(0).gauss(1.0, 0.1) for _ in range(30)]
    interval = bootstrap(values)
    assert interval.low <= interval.median <= interval.high
    assert interval == bootstrap(values)


def test_one_value_gives_an_interval_without_width() -> None:
    assert bootstrap([2.0]) == Interval(median=2.0, low=2.0, high=2.0)


def test_a_planted_stall_comes_out_as_stall_and_as_slowdown() -> None:
    one = summarize([result()], busy_share=0.1)
    assert one.stall_s is not None
    assert one.stall_s.median == pytest.approx(0.02)
    assert one.slowdown is not None
    assert one.slowdown.median == pytest.approx(1.1)
    assert one.ns_per_byte == pytest.approx(20.0)
    assert one.stall_of_limit == pytest.approx(20.0)
    assert one.cpu_s_per_save == pytest.approx(0.5)


def test_no_number_is_given_when_others_had_the_machine() -> None:
    one = summarize([result(others=0.5)], busy_share=0.1)
    assert one.slowdown is None
    assert one.stall_s is None
    assert (one.pairs, one.pairs_disturbed) == (0, 3)


def test_disturbed_pairs_are_left_out_of_the_number() -> None:
    mixed = result()
    mixed["blocks"][0]["others"] = 0.5
    mixed["blocks"][0]["times_s"] = [9.0] * 6
    one = summarize([mixed], busy_share=0.1)
    assert one.pairs_disturbed == 1
    assert one.slowdown is not None
    assert one.slowdown.high == pytest.approx(1.1)


def test_drops_of_all_runs_are_summed() -> None:
    assert summarize([result(tool={"drops": 2}), result(tool={"drops": 3})], 0.1).drops == 5


def test_the_statistics_of_all_tensors_are_set_against_the_bytes_that_they_read() -> None:
    reduced = result(tool={"payload_bytes_per_save": 4.0})
    reduced["cell"]["collection"] = "statistics"
    assert summarize([reduced], 0.1).bytes_per_save == 10**6


def test_the_disk_floor_is_what_writing_all_bytes_in_time_would_take() -> None:
    slow_disk = result(disk_bytes_per_s=1e6)  # 13 MB in 13 saves, one in two steps of 0.1 s
    assert summarize([slow_disk], 0.1).disk_floor == pytest.approx(5.0)


def test_an_estimate_spreads_the_stall_over_the_interval() -> None:
    stall = Interval(median=0.02, low=0.01, high=0.03)
    far = estimate(stall, step=0.1, interval=100, written=0, disk=0)
    assert (far.low, far.median, far.high) == pytest.approx((1.001, 1.002, 1.003))


def test_an_estimate_is_never_below_what_the_disk_leaves() -> None:
    stall = Interval(median=0.02, low=0.01, high=0.03)
    assert estimate(stall, step=0.1, interval=1, written=3e8, disk=1e9).median == pytest.approx(3.0)


costs = st.floats(1e-11, 1e-9)


@given(costs, costs, st.floats(1e-7, 1e-5), st.floats(1e-5, 1e-2))
def test_the_cost_model_finds_planted_costs(values: float, only: float, tensor: float, step: float) -> None:
    shapes = [(1e8, 0.0, 200), (5e7, 0.0, 20), (1e6, 0.0, 60), (0.0, 1e8, 200), (0.0, 2e7, 28), (4.0, 0.0, 1)]
    rows = [(a, b, n, values * a + only * b + tensor * n + step) for a, b, n in shapes]
    model = fit(rows, per_unsaved_step=0.0)
    for (a, b, n), row in zip(shapes, rows, strict=True):
        assert model.stall(values=a, statistics_only=b, tensors=n) == pytest.approx(row[3], rel=1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(1, 1e3), st.floats(0, 1)), min_size=4)
)
def test_the_cost_model_has_no_negative_costs(rows: list[tuple[float, float, float, float]]) -> None:
    model = fit(rows, per_unsaved_step=1e-6)
    assert min(value for name, value in model.to_json_dict().items()) >= 0


def test_a_prediction_is_the_stall_and_the_unsaved_steps_spread_over_the_interval() -> None:
    model = fit([(0, 0, n, 0.001 * n) for n in (1, 2, 3, 4)], per_unsaved_step=1e-4)
    assert model.slowdown(0.01, step=0.1, interval=10) == pytest.approx(1 + (0.01 + 9e-4) / 1.0)


def test_pairs_of_a_result_tell_where_in_the_block_steps_were_saved() -> None:
    assert [one.saved for one in pairs_of(result())] == [[0, 2, 4]] * 3
