"""UnequalRanks: inputs, outputs and losses of two ranks or more."""

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
from tdcore.rules import OutlierRank, Status, UnequalRanks
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network
from tests.trial.writer import RunWriter

X = "Net_input_0"


def ranks(
    *rms: float, mean: tuple[float, ...] = (), steps: int = 6, name: str = X, kind: str = "input"
) -> Trace:
    """Return a trace of ranks whose values have this root mean square, or a deviation of 1 and this mean."""
    trace = Trace()
    for step in range(steps):
        for rank in range(max(len(rms), len(mean))):
            spread = np.array([-1.0, 1.0])
            values = spread + mean[rank] if mean else spread * rms[rank]
            if kind == "loss":
                values = np.array(rms[rank])
            trace.add(step, name, kind, values, worker=f"worker_{rank}")
    return trace


def reported(rule: UnequalRanks, trace: Trace) -> list[tuple[str, int, object]]:
    found, _ = judge(rule, trace)
    return [(finding.worker, finding.step, finding.numbers["kind"]) for finding in found]


def two_ranks(place: Path, monkeypatch: pytest.MonkeyPatch, *, offset: float) -> Path:
    """Train two ranks with equal weights and averaged gradients; the inputs of rank 1 have an offset."""
    batches = blobs(6, batch=64)
    models = [network(), network()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    hooks, losses = [], [nn.CrossEntropyLoss(), nn.CrossEntropyLoss()]
    for rank, model in enumerate(models):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        hooks.append(
            Hook(
                place,
                save_config=td.SaveConfig(save_interval=1),
                include_collections=["inputs", "losses", "gradients"],
                include_workers="all",
                ring=td.RingConfig(ring_bytes=1 << 24),
                flusher="thread",
            )
        )
        hooks[-1].register_module(model)
        hooks[-1].register_loss(losses[rank])
    for inputs, labels in batches:
        for rank, model in enumerate(models):
            part = slice(rank * 32, rank * 32 + 32)
            optimizers[rank].zero_grad()
            losses[rank](model(inputs[part] + offset * rank), labels[part]).backward()
        for pair in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([one.grad for one in pair if one.grad is not None]).mean(dim=0)
            for one in pair:
                one.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    for hook in hooks:
        hook.close()
    return place


@pytest.mark.proves("TDC131", "fires")
def test_one_of_two_ranks_with_inputs_of_mean_40_is_found_although_gradients_are_averaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = two_ranks(tmp_path, monkeypatch, offset=40.0)
    found, _ = judge_run(UnequalRanks(), place)
    of_inputs = [finding for finding in found if finding.tensor == "Sequential_input_0"]
    assert [(finding.worker, finding.step) for finding in of_inputs] == [("worker_1", 4)]
    assert of_inputs[0].numbers["mean"] == pytest.approx(40, abs=1)
    assert judge_run(OutlierRank(), place)[1].status is Status.NOT_APPLICABLE


@pytest.mark.proves("TDC131", "quiet")
def test_two_ranks_with_batches_of_the_same_data_stay_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, verdict = judge_run(UnequalRanks(), two_ranks(tmp_path, monkeypatch, offset=0.0))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC131", "not evaluable")
def test_a_run_of_two_workers_with_weights_only_is_not_evaluable(tmp_path: Path) -> None:
    for rank in range(2):
        writer = RunWriter(tmp_path, worker=f"worker_{rank}", world_size=2)
        writer.add("w", np.ones(2), step=0)
        writer.flush()
        writer.end()
    _, verdict = judge_run(UnequalRanks(), tmp_path)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="model_values"' in verdict.fix


def test_a_training_of_one_process_has_nothing_to_compare(losses_run: Path) -> None:
    assert judge_run(UnequalRanks(), losses_run)[1].status is Status.NOT_APPLICABLE


@pytest.mark.proves("TDC131", "boundary")
@pytest.mark.parametrize(
    ("size", "found"), [(4.01, ["worker_1"]), (3.99, []), (0.251, []), (0.249, ["worker_0"])]
)
def test_a_factor_beyond_the_limit_fires_and_the_larger_of_two_ranks_is_named(
    size: float, found: list[str]
) -> None:
    assert [worker for worker, _, _ in reported(UnequalRanks(), ranks(1.0, size))] == found


@pytest.mark.proves("TDC131", "boundary")
def test_means_that_are_far_apart_fire_where_sizes_are_alike() -> None:
    assert reported(UnequalRanks(factor=100), ranks(mean=(0.0, 4.01))) == [("worker_1", 4, "shift")]
    assert not reported(UnequalRanks(factor=100), ranks(mean=(0.0, 3.99)))


@pytest.mark.proves("TDC131", "boundary")
def test_it_must_last_and_is_reported_once() -> None:
    assert not reported(UnequalRanks(), ranks(1.0, 9.0, steps=4))
    assert reported(UnequalRanks(), ranks(1.0, 9.0, steps=30)) == [("worker_1", 4, "scale")]


def test_of_three_ranks_the_one_that_deviates_is_named_whether_larger_or_smaller() -> None:
    assert reported(UnequalRanks(), ranks(1.0, 9.0, 1.0)) == [("worker_1", 4, "scale")]
    assert reported(UnequalRanks(), ranks(1.0, 1.0, 0.1)) == [("worker_2", 4, "scale")]
    assert not reported(UnequalRanks(), ranks(1.0, 10.0, 100.0))


def test_losses_are_compared_by_their_size() -> None:
    apart = ranks(1.0, 9.0, name="loss", kind="loss", steps=20)
    assert reported(UnequalRanks(), apart) == [("worker_1", 19, "scale")]
    assert not reported(UnequalRanks(), ranks(1.0, 9.0, name="loss", kind="loss", steps=19))
    assert not reported(UnequalRanks(), ranks(1.0, 3.0, name="loss", kind="loss", steps=20))


def test_losses_that_differ_much_from_batch_to_batch_stay_quiet() -> None:
    """Near the end of a training, losses are almost 0; their logarithms have a standard deviation of 1.5."""
    random = np.random.default_rng(0)
    trace = Trace()
    for step in range(3000):
        for rank in range(2):
            trace.add(step, "loss", "loss", np.exp(random.normal(-6.0, 1.5)), worker=f"worker_{rank}")
    assert not reported(UnequalRanks(), trace)


def test_constants_have_no_shift() -> None:
    trace = Trace()
    for step in range(6):
        for rank in range(2):
            trace.add(step, "Net_input_time", "input", [1.0 + rank, 1.0 + rank], worker=f"worker_{rank}")
    assert not reported(UnequalRanks(), trace)


def test_tensors_of_layers_and_integers_are_not_compared() -> None:
    assert not reported(UnequalRanks(), ranks(1.0, 9.0, name="experts.0_output_0", kind="output"))
    trace = Trace()
    for step in range(6):
        for rank in range(2):
            trace.add(step, X, "input", [1.0 + 99.0 * rank], worker=f"worker_{rank}", dtype="I64")
    assert not reported(UnequalRanks(), trace)


def test_any_windows_give_the_same_findings() -> None:
    found = same_in_any_cuts(UnequalRanks(workers=2), ranks(1.0, 9.0, steps=12), seeds=9)
    assert [(finding.worker, finding.step) for finding in found] == [("worker_1", 4)]


@pytest.mark.parametrize("parameters", [{"factor": 1.0}, {"shift": 0.0}, {"patience": 0}, {"workers": 1}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        UnequalRanks(**parameters)
