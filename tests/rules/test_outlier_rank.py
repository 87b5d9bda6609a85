"""OutlierRank: the rank that deviates, the reference, and when a step is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.hooks.pytorch import Hook
from tdcore.rules import Engine, OutlierRank, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import CutSource, judge, judge_of, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network
from tests.trial.writer import RunWriter

G = "gradient/Net_fc.weight"


def ranks(*sizes: float, steps: int = 6, names: tuple[str, ...] = (G,)) -> Trace:
    """Return a trace of gradients of one element with these sizes, one per rank, at every step."""
    trace = Trace()
    for step in range(steps):
        for rank, size in enumerate(sizes):
            for name in names:
                trace.add(step, name, "gradient", [size], worker=f"worker_{rank}")
    return trace


def reported(rule: OutlierRank, trace: Trace) -> list[tuple[str, int, object]]:
    found, _ = judge(rule, trace)
    return [(finding.worker, finding.step, finding.numbers["kind"]) for finding in found]


def four_ranks(place: Path, monkeypatch: pytest.MonkeyPatch, *, scale: float, captured: list[str]) -> Path:
    """Train four ranks one after the other, with different data; the loss of rank 2 is multiplied by `scale`.

    Each rank has its own weights; at this learning rate they stay similar.
    """
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        model, criterion = network(), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        hook = Hook(
            place,
            save_config=td.SaveConfig(save_interval=1),
            include_collections=captured,
            include_workers="all",
            ring=td.RingConfig(ring_bytes=1 << 24),
            flusher="thread",
        )
        hook.register_module(model)
        hook.register_loss(criterion)
        for inputs, labels in blobs(6, batch=64):
            part = slice(rank * 16, rank * 16 + 16)
            optimizer.zero_grad()
            loss: torch.Tensor = criterion(model(inputs[part]), labels[part])
            (loss * (scale if rank == 2 else 1.0)).backward()
            optimizer.step()
        hook.close()
    return place


@pytest.mark.proves("TDC125", "fires")
def test_a_rank_whose_loss_is_scaled_differently_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = judge_run(
        OutlierRank(), four_ranks(tmp_path, monkeypatch, scale=100.0, captured=["gradients"])
    )
    assert [(finding.worker, finding.step, finding.numbers["ranks"]) for finding in found] == [
        ("worker_2", 4, 4)
    ]


@pytest.mark.proves("TDC125", "quiet")
def test_ranks_with_batches_of_the_same_data_stay_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, verdict = judge_run(
        OutlierRank(), four_ranks(tmp_path, monkeypatch, scale=1.0, captured=["gradients"])
    )
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 6 * 4 * 6


@pytest.mark.proves("TDC125", "not evaluable")
def test_a_run_of_three_workers_without_gradients_is_not_evaluable(tmp_path: Path) -> None:
    for rank in range(3):
        writer = RunWriter(tmp_path, worker=f"worker_{rank}", world_size=3)
        writer.add("w", np.ones(2), step=0)
        writer.flush()
        writer.end()
    _, verdict = judge_run(OutlierRank(), tmp_path)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="gradients"' in verdict.fix


@pytest.mark.proves("TDC125", "boundary")
@pytest.mark.parametrize(("size", "kinds"), [(4.01, ["large"]), (3.99, []), (0.26, []), (0.249, ["small"])])
def test_a_factor_beyond_the_limit_fires(size: float, kinds: list[str]) -> None:
    assert [kind for _, _, kind in reported(OutlierRank(), ranks(1.0, 1.0, 1.0, size))] == kinds


@pytest.mark.proves("TDC125", "boundary")
def test_it_must_last_and_is_told_once() -> None:
    assert not reported(OutlierRank(), ranks(1.0, 1.0, 9.0, steps=4))
    assert reported(OutlierRank(), ranks(1.0, 1.0, 9.0, steps=30)) == [("worker_2", 4, "large")]


def test_ranks_that_differ_widely_have_no_outlier() -> None:
    assert not reported(OutlierRank(), ranks(1.0, 10.0, 100.0, 1000.0, 1e5))


def test_one_gradient_alone_does_not_make_an_outlier() -> None:
    trace = ranks(1.0, 1.0, 1.0, names=("a", "b", "c"))
    for step in range(6):
        for rank in range(3):
            trace.add(step, "d", "gradient", [99.0 if rank else 1.0], worker=f"worker_{rank}")
    assert not reported(OutlierRank(), trace)


def test_the_gradient_that_deviates_most_is_named() -> None:
    trace = ranks(1.0, 1.0, 9.0, names=("a", "b"))
    for step in range(6):
        for rank in range(3):
            trace.add(step, "c", "gradient", [99.0 if rank == 2 else 1.0], worker=f"worker_{rank}")
    (finding,) = judge(OutlierRank(), trace)[0]
    assert finding.tensor == "c"
    assert finding.numbers["norm"] == pytest.approx(99.0)
    assert finding.numbers["median_norm"] == 1.0


def test_a_rank_without_any_gradient_signal_is_an_outlier() -> None:
    assert reported(OutlierRank(), ranks(1.0, 0.0, 1.0)) == [("worker_1", 4, "small")]
    assert not reported(OutlierRank(), ranks(0.0, 0.0, 0.0))


def test_gradients_that_not_all_ranks_have_are_left_out() -> None:
    trace = ranks(1.0, 1.0, 9.0)
    for step in range(6):
        trace.add(step, "extra", "gradient", [1e9], worker="worker_0")
    assert reported(OutlierRank(), trace) == [("worker_2", 4, "large")]


def test_gradients_that_are_not_finite_are_noted() -> None:
    _, verdict = judge(OutlierRank(), ranks(1.0, 1.0, float("nan"), 1.0))
    assert verdict.missing == {"gradient is not finite": 6}
    assert verdict.judged == 6 * 3


def place(whole: list[int], offset: list[int], partial: str | None = None) -> dict[str, Any]:
    return {"global_shape": whole, "offset": offset, "partial": partial}


def test_parts_of_sharded_gradients_are_not_taken_for_each_other() -> None:
    trace = Trace()
    for step in range(6):
        for rank, size in enumerate((1.0, 1e6, 1.0, 1e-6)):
            shard = place([4], [rank])
            trace.add(step, G, "gradient", [size], worker=f"worker_{rank}", shard=shard)
        for rank in range(4):  # a tensor of one element, which one rank has
            shard = place([1], [min(rank, 1)])
            values = [1.0] if rank == 0 else []
            trace.add(step, "gradient/b", "gradient", values, worker=f"worker_{rank}", shard=shard)
    found, verdict = judge(OutlierRank(), trace)
    assert not found
    assert verdict.status is Status.NOT_EVALUABLE
    assert "each rank has a different part" in verdict.reason


@pytest.mark.parametrize("partial", [None, "sum"])
def test_copies_and_summands_of_a_gradient_are_judged_beside_parts(partial: str | None) -> None:
    trace = Trace()
    for step in range(6):
        for rank, size in enumerate((1.0, 1.0, 9.0)):
            worker, copy = f"worker_{rank}", place([1], [0], partial)
            trace.add(step, G, "gradient", [size], worker=worker, shard=copy)
            trace.add(step, "w", "gradient", [1.0], worker=worker, shard=place([3], [rank]))
    assert reported(OutlierRank(), trace) == [("worker_2", 4, "large")]
    verdict = judge(OutlierRank(), trace)[1]
    assert list(verdict.missing.values())[:1] == [18]  # the ranks' shards of w, at six steps
    assert verdict.judged == 6 * 3


def test_workers_that_arrive_at_different_times_are_waited_for() -> None:
    trace = ranks(1.0, 1.0, 9.0, 1.0, steps=12)
    found = same_in_any_cuts(OutlierRank(workers=4), trace, seeds=12)
    assert [(finding.worker, finding.step) for finding in found] == [("worker_2", 4)]


def test_a_worker_that_never_comes_is_not_waited_for_beyond_a_hundred_steps() -> None:
    trace = ranks(1.0, 1.0, 9.0, steps=150)
    source = CutSource(trace, np.random.default_rng(0), chance=1.0)
    engine = Engine(source, [OutlierRank(workers=5)])
    found = []
    while source.windows_left > 1:  # the run has not ended yet
        found += engine.step()
    assert [finding.step for finding in found] == [4]


def test_a_worker_that_comes_after_its_step_was_judged_is_noted() -> None:
    trace = ranks(1.0, 1.0, 1.0, steps=3)
    source = trace.source()
    engine = Engine(source, [OutlierRank()])
    engine.step()
    late = Trace().add(1, G, "gradient", [9.0], worker="worker_9")
    source._table = late.table()
    engine.step()
    assert engine.verdicts(finished=True)[0].missing["the row arrived after its step was judged"] == 1


def test_parameters_come_as_text() -> None:
    assert load_rule("outlier_rank:factor=3,patience=2,workers=8") == OutlierRank(
        factor=3.0, patience=2, workers=8
    )


@pytest.mark.parametrize("parameters", [{"factor": 1.0}, {"patience": 0}, {"workers": 2}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OutlierRank(**parameters)


def test_steps_that_wait_share_the_names_of_their_gradients() -> None:
    trace = ranks(1.0, 1.0, steps=20, names=tuple(f"gradient/{at}" for at in range(50)))
    source = CutSource(trace, np.random.default_rng(0), chance=1.0)
    engine = Engine(source, [OutlierRank(workers=3)])
    while source.windows_left > 1:
        engine.step()
    (kept,) = judge_of(engine).memory.values()
    assert len({id(part.names) for parts in kept.waiting.values() for part in parts.values()}) == 1


def test_steps_before_a_mode_was_set_are_not_taken_for_those_after() -> None:
    trace = Trace()
    for step in range(12):
        mode, mode_step = ("GLOBAL", step) if step < 5 else ("TRAIN", step - 5)
        for rank, size in enumerate((1.0, 1.0, 9.0)):
            trace.add(step, G, "gradient", [size], mode=mode, mode_step=mode_step, worker=f"worker_{rank}")
    found = same_in_any_cuts(OutlierRank(), trace)
    assert [(finding.mode, finding.step) for finding in found] == [("GLOBAL", 4), ("TRAIN", 9)]
