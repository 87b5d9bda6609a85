"""No rule raises for any rows of a run, and no rule uses more and more memory."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tdcore.rules import RULES
from tdcore.rules.base import Finding, Rule, Status
from tdcore.rules.engine import Engine
from tdcore.rules.safe_pickle import dump, load
from tdcore.rules.trace import Trace
from tests.rules.judging import CutSource, RunningSource

# (name, kind, origin): tensors that rules search for, and some that may disturb them.
TENSORS = (
    ("loss", "loss", "torch.nn.modules.loss.CrossEntropyLoss"),
    ("eval_loss", "loss", None),
    ("0.weight", "weight", None),
    ("0.bias", "bias", None),
    ("gradient/0.weight", "gradient", None),
    ("gradient/0.bias", "gradient", None),
    ("relu_output_0", "output", "torch.nn.modules.activation.ReLU"),
    ("relu_input_0", "input", "torch.nn.modules.activation.ReLU"),
    ("tanh_input_0", "input", "torch.nn.modules.activation.Tanh"),
    ("conv_output_0", "output", "torch.nn.modules.conv.Conv2d"),
    ("conv_input_0", "input", "torch.nn.modules.conv.Conv2d"),
    ("fc_output_0", "output", "torch.nn.modules.linear.Linear"),
    ("emb_input_0", "input", "torch.nn.modules.sparse.Embedding"),
    ("labels", "custom", None),
    ("predictions", "custom", None),
    ("trees/Tree", "custom", None),
    ("trees/ID", "custom", None),
    ("trees/Yes", "custom", None),
    ("trees/No", "custom", None),
    ("feature_importance/weight/f0", "custom", None),
    ("feature_importance/weight/f1", "custom", None),
    ("feature_importance/weight/f2", "custom", None),
    ("feature_importance/weight/f3", "custom", None),
    ("optimizer/lr", "hyperparameter", "torch.optim.sgd.SGD"),
    ("optimizer/momentum", "hyperparameter", "torch.optim.sgd.SGD"),
    ("exp_avg", "optimizer_state", "torch.optim.adam.Adam"),
    ("x", "custom", ""),
)
SHAPES = (
    (),
    (0,),
    (1,),
    (3,),
    (25,),
    (0, 3),
    (4, 1),
    (4, 6),
    (30, 2),
    (2, 3, 4),
    (1, 3, 2, 2),
    (2, 3, 1, 2, 2),
)
TYPES = (("F32", np.float32), ("F64", np.float64), ("I64", np.int64), ("BOOL", np.bool_), ("F16", np.float16),
         ("BF16", np.float32), ("U8", np.uint8), ("F8_E4M3", np.float32), ("C64", np.complex64))  # fmt: skip
NUMBERS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    0.3,
    1e-9,
    1e-30,
    -5.0,
    1e4,
    1e30,
    1e200,
    -1e300,
    np.nan,
    np.inf,
    -np.inf,
)
STATUSES = ("ok", "ok", "ok", "ok", "ok", "lost", "absent", "skipped")


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """Return arguments of Trace.add, except the step."""
    name, kind, origin = draw(st.sampled_from(TENSORS))
    dtype, numpy_type = draw(st.sampled_from(TYPES))
    status = draw(st.sampled_from(STATUSES))
    some = draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4))
    shape = draw(st.sampled_from(SHAPES))
    with np.errstate(all="ignore"):
        values: Any = np.resize(np.array(some), shape).astype(numpy_type)
    return {
        "name": name,
        "kind": draw(st.sampled_from([kind, kind, kind, "loss", "custom"])),
        "values": values if status in ("ok", "lost") else None,
        "mode": draw(st.sampled_from(["TRAIN", "TRAIN", "EVAL", "GLOBAL", "PREDICT"])),
        "worker": draw(st.sampled_from(["worker_0", "worker_1", "worker_2"])),
        "attempt": draw(st.sampled_from([0, 0, 1])),
        "origin": draw(st.sampled_from([origin, origin, None])),
        "call": draw(st.sampled_from([0, 0, 1])),
        "payload": draw(st.booleans()) and status == "ok",
        "statistics": dtype != "C64" and draw(st.sampled_from([True, True, True, False])),
        "status": status,
        "dtype": dtype,
    }


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Traces whose steps repeat the same odd rows, so that the patience of rules also ends."""
    trace = Trace()
    repeated = draw(st.lists(rows(), max_size=6))
    steps = draw(st.lists(st.integers(0, 12), max_size=12))
    for step in sorted(steps) if draw(st.booleans()) else steps:
        for row in [*repeated, *draw(st.lists(rows(), max_size=3))]:
            trace.add(step, **row)
    return trace


def every_rule() -> list[Rule]:
    return [rule() for rule in RULES.values()]


def told_in_plain_words(found: list[Finding]) -> bool:
    """Return whether findings contain plain values only, and a text."""
    for finding in found:
        json.dumps(finding.to_json(), allow_nan=False)
        assert finding.why
        assert finding.do
        assert {type(value) for value in finding.numbers.values()} <= {int, float, str}
    return True


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces(), st.integers(0, 3))
def test_no_rule_fails_on_odd_rows_however_they_are_cut(trace: Trace, seed: int) -> None:
    source = CutSource(trace, np.random.default_rng(seed), chance=(0.0, 0.2, 0.5, 1.0)[seed])
    engine = Engine(source, every_rule())
    while source.windows_left:
        assert told_in_plain_words(engine.step())
        load(dump(engine.state()))
    failed = [verdict for verdict in engine.verdicts(finished=True) if verdict.status is Status.ERROR]
    assert not failed, [f"{verdict.rule}: {verdict.reason}" for verdict in failed]
    assert not [
        verdict.reason for verdict in engine.verdicts(finished=True) if "then the rule" in verdict.text
    ]


def steps_of_a_run(steps: range) -> Trace:
    """Yield steps of three workers with all kinds of tensors that rules read; every fourth step is EVAL."""
    random = np.random.default_rng(steps.start)
    trace = Trace()
    for step in steps:
        cycle, place = divmod(step, 4)
        mode, mode_step = ("TRAIN", 3 * cycle + place) if place < 3 else ("EVAL", cycle)
        for worker in ("worker_0", "worker_1", "worker_2"):
            rows: list[tuple[str, str, Any, str | None, str]] = [
                ("loss", "loss", 1.0 + random.random(), None, "F32"),
                ("0.weight", "weight", random.normal(size=(4, 6)), None, "F32"),
                ("1.weight", "weight", np.ones((4, 6)), None, "F32"),
                ("gradient/0.weight", "gradient", random.normal(size=(4, 6)), None, "F16"),
                ("gradient/1.weight", "gradient", np.zeros((4, 6)), None, "F32"),
                ("relu_output_0", "output", np.maximum(random.normal(size=(8, 6)), 0.0), "ReLU", "F32"),
                ("tanh_input_0", "input", 20 * random.normal(size=(8, 6)), "Tanh", "F32"),
                ("conv_input_0", "input", random.normal(size=(1, 3, 4, 4)), "Conv2d", "F32"),
                ("conv_output_0", "output", random.normal(size=(1, step % 9 + 1, 4, 4)), "Conv2d", "F32"),
                ("emb_input_0", "input", random.integers(0, 9, (2, 7)), "Embedding", "I64"),
                ("labels", "custom", random.integers(0, 5, 8), None, "I64"),
                ("predictions", "custom", random.integers(0, 5, 8 + step % 2), None, "I64"),
                ("optimizer/lr", "hyperparameter", 0.1, "SGD", "F32"),
                *((f"feature_importance/weight/{at}", "custom", 1.0 / at, None, "F32") for at in range(1, 6)),
            ]
            for name, kind, values, origin, dtype in rows:
                trace.add(
                    step, name, kind, values, origin=origin, dtype=dtype, payload=True, mode=mode,
                    mode_step=mode_step, worker=worker,
                )  # fmt: skip
    return trace


def test_what_a_rule_remembers_of_a_long_run_does_not_grow() -> None:
    engine = Engine(RunningSource(Trace()), every_rule())
    sizes: list[list[int]] = []
    for window in range(66):
        engine.source = RunningSource(steps_of_a_run(range(4 * window, 4 * window + 4)))
        engine.step()
        if window >= 26 and window % 2:
            sizes.append([len(dump((judge.memory, judge.coverage))) for judge in engine._runs])
    early, late = (np.max(part, axis=0) for part in (sizes[:10], sizes[10:]))
    grown = late > 1.03 * early + 200
    assert not {code: sizes[-1][at] for at, code in enumerate(RULES) if grown[at]}
    assert not [judge.error for judge in engine._runs if judge.error]
