"""PrecisionRisk: the values that are too small or too large for a type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import PrecisionRisk, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

G = "gradient/Net_fc.weight"


def saved(*steps: Any, dtype: str = "F16", kind: str = "gradient", name: str = G) -> Trace:
    trace = Trace()
    for step, values in enumerate(steps):
        trace.add(step, name, kind, np.asarray(values, dtype=np.float64), dtype=dtype)
    return trace


def share(small: int, of: int = 100, *, size: float = 2.0**-15) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return `of` elements: this many have this size, the others are 1."""
    return np.concatenate([np.full(small, size), np.ones(of - small)])


class ScaledLoss(nn.Module):
    """Cross-entropy in float32, times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.factor * nn.functional.cross_entropy(outputs.float(), labels)


def in_half(place: Path, factor: float) -> Path:
    """Train in float16 with a loss that is multiplied by a factor."""
    return train(
        place,
        network().half(),
        [(inputs.half(), labels) for inputs, labels in blobs(5)],
        collections=["gradients", "outputs"],
        criterion=ScaledLoss(factor),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01 / factor),
    )


@pytest.mark.proves("TDC124", "fires")
def test_a_training_in_half_precision_with_a_tiny_loss_loses_its_gradients(tmp_path: Path) -> None:
    found, _ = judge_run(PrecisionRisk(), in_half(tmp_path, 1e-3))
    assert {finding.numbers["kind"] for finding in found} == {"underflow"}
    assert "gradient/Sequential_0.weight" in {finding.tensor for finding in found}
    assert {finding.step for finding in found} == {2}


@pytest.mark.proves("TDC124", "quiet")
def test_the_same_training_with_a_loss_scale_stays_quiet(tmp_path: Path) -> None:
    found, verdict = judge_run(PrecisionRisk(), in_half(tmp_path, 16.0))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC124", "not evaluable")
def test_a_run_in_single_precision_is_not_evaluable_unless_a_type_is_named(healthy_run: Path) -> None:
    _, verdict = judge_run(PrecisionRisk(), healthy_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "name a dtype" in verdict.reason
    assert judge_run(PrecisionRisk(dtype="bfloat16"), healthy_run)[1].status is Status.NO_ISSUE


@pytest.mark.proves("TDC124", "boundary")
@pytest.mark.parametrize(("small", "fires"), [(24, False), (25, False), (26, True)])
def test_a_quarter_of_small_elements_does_not_fire_and_more_does(small: int, fires: bool) -> None:
    assert bool(judge(PrecisionRisk(patience=1), saved(share(small)))[0]) == fires


@pytest.mark.proves("TDC124", "boundary")
@pytest.mark.parametrize(
    ("dtype", "normal", "largest"),
    [
        ("float16", 2.0**-14, 65504.0),
        ("float8_e4m3", 2.0**-6, 448.0),
        ("float8_e5m2", 2.0**-14, 57344.0),
        ("bfloat16", 2.0**-126, 3.3895313892515355e38),
    ],
)
def test_the_range_of_each_type_is_its_own(dtype: str, normal: float, largest: float) -> None:
    rule = PrecisionRisk(dtype=dtype, patience=1, headroom=1.0)
    assert not judge(rule, saved([normal, largest], dtype="F32"))[0]
    (below,) = judge(rule, saved([normal * (1 - 2**-20)], dtype="F32"))[0]
    (above,) = judge(rule, saved([largest * (1 + 2**-20)], dtype="F32"))[0]
    assert (below.numbers["kind"], above.numbers["kind"]) == ("underflow", "overflow")


@pytest.mark.proves("TDC124", "boundary")
def test_headroom_asks_for_a_bit_more() -> None:
    assert not judge(PrecisionRisk(patience=1), saved([32752.0]))[0]
    assert judge(PrecisionRisk(patience=1), saved([32768.0]))[0]


def test_what_would_become_zero_is_told() -> None:
    values = np.r_[np.full(30, 2.0**-26), np.full(20, 2.0**-20), np.ones(50)]
    (finding,) = judge(PrecisionRisk(dtype="float16", patience=1), saved(values, dtype="F32"))[0]
    assert finding.numbers["small_percent"] == 50.0
    assert finding.numbers["lost_percent"] == 30.0


def test_zeros_do_not_count_as_small() -> None:
    values = np.r_[np.zeros(900), share(25)]
    assert not judge(PrecisionRisk(patience=1), saved(values))[0]
    assert not judge(PrecisionRisk(patience=1), saved(np.zeros(4)))[0]


def test_it_must_last_and_is_told_once() -> None:
    bad, fine = share(90), share(0)
    found = same_in_any_cuts(PrecisionRisk(), saved(bad, bad, fine, bad, bad, bad, bad))
    assert [finding.step for finding in found] == [5]


def test_small_outputs_do_no_harm_unless_they_are_named_and_large_ones_do() -> None:
    small = saved(share(90), kind="output", name="Net_output_0")
    assert not judge(PrecisionRisk(patience=1), small)[0]
    assert judge(PrecisionRisk(patience=1, collection_names="outputs"), small)[0]
    assert judge(PrecisionRisk(patience=1), saved([6e4], kind="output", name="Net_output_0"))[0]


def test_float8_fills_its_range_on_purpose() -> None:
    assert not judge(PrecisionRisk(patience=1), saved([448.0], dtype="F8_E4M3"))[0]
    (finding,) = judge(PrecisionRisk(patience=1), saved(share(90, size=2.0**-7), dtype="F8_E4M3"))[0]
    assert finding.numbers["dtype"] == "float8_e4m3"


def test_integers_are_not_judged() -> None:
    _, verdict = judge(PrecisionRisk(dtype="float16", collection_names="all"), saved([70000], dtype="I64"))
    assert verdict.status is Status.NOT_EVALUABLE


def test_parameters_come_as_text() -> None:
    rule = load_rule("precision_risk:dtype=float16,tensor_regex=fc,attn,underflow_percent=5,headroom=4")
    assert rule == PrecisionRisk(dtype="float16", tensor_regex="fc,attn", underflow_percent=5.0, headroom=4.0)


@pytest.mark.parametrize(
    "parameters",
    [
        {"dtype": "float128"},
        {"underflow_percent": 101.0},
        {"headroom": 0.5},
        {"patience": 0},
        {"tensor_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PrecisionRisk(**parameters)
