"""A value that readers would refuse does not damage its run: it is left out, counted and logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcore as td
from tdcore import _core
from tdcore.format.layout import MAX_NAME_CHARS, TensorKind
from tdcore.hooks.pytorch import Hook
from tdcore.session import Session
from tests.hooks.conftest import MakeHook, ReadRun

LONG = "x" * (MAX_NAME_CHARS + 1)


def test_a_name_that_is_too_long_for_readers_is_left_out_and_the_run_stays_readable(
    make_hook: MakeHook, read_run: ReadRun, caplog: pytest.LogCaptureFixture
) -> None:
    hook = make_hook(include_collections=["custom"])
    hook.save_tensor(LONG, torch.ones(3), "custom")
    hook.save_tensor("x" * MAX_NAME_CHARS, torch.ones(3), "custom")
    hook.save_tensor("short", torch.ones(3), "custom")
    run = read_run(hook)
    assert sorted(run.names(), key=len) == ["short", "x" * MAX_NAME_CHARS]
    assert run.trial.notes()["names_left_out"]["kinds"] == {"custom": 1}
    ((name, why),) = run.trial.notes()["names_left_out"]["examples"].items()
    assert name.startswith("xxx")
    assert "65,537 characters" in name
    assert "65,536 characters" in why
    assert hook.counters().drops["unfit_name"].tensors == 1
    (missing,) = run.trial.missing()
    assert missing.what == "names"
    assert "longer" in caplog.text


def test_a_name_that_is_no_text_is_left_out_and_later_values_are_kept(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook = make_hook()
    hook.save_scalar("a\ud800b", 1.0)
    hook.save_scalar("b", 2.0)
    run = read_run(hook)
    assert run.names() == ["scalar/b"]
    assert list(run.trial.notes()["names_left_out"]["examples"]) == [r"scalar/a\ud800b"]
    assert "faults" not in run.trial.notes()


def test_a_module_with_a_name_that_is_too_long_is_left_out(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = torch.nn.Sequential()
    model.add_module(LONG, torch.nn.Linear(2, 2))
    model.add_module("short", torch.nn.Linear(2, 2))
    hook = make_hook(include_collections=["weights"])
    hook.register_module(model)
    model(torch.ones(1, 2)).sum().backward()
    run = read_run(hook)
    assert run.names() == ["Sequential_short.weight"]
    assert run.trial.notes()["names_left_out"]["kinds"] == {"weight": 1}


def test_a_script_that_uses_the_ring_itself_cannot_spoil_its_run_either(tmp_path: Path) -> None:
    with Session(tmp_path / "run", configuration={}, framework="x", framework_version="0") as session:
        names = [session.ring.intern(name, 10) for name in (LONG, "ü" * MAX_NAME_CHARS, "short")]
        ids = np.array(names, np.uint32)
        assert session.ring.capture([np.ones(2)] * 3, ids, bytes([3] * 3), 0, 1, 0) == 1
    assert td.create_trial(str(tmp_path / "run")).tensor_names() == ["short", "ü" * MAX_NAME_CHARS]
    assert "unfit_name" in _core.DROP_REASONS.values()


names = st.one_of(
    st.text(max_size=20),
    st.text(
        st.characters(categories=["Cs", "Cc", "Lu"]), min_size=1, max_size=8
    ),  # surrogates, NUL, newlines
    st.integers(MAX_NAME_CHARS - 20, MAX_NAME_CHARS + 20).map("n".__mul__),
)
shapes = st.lists(st.integers(0, 4), max_size=17).filter(lambda shape: np.prod(shape, dtype=np.int64) < 5000)
dtypes = st.sampled_from(
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.uint8,
        torch.float16,
    ]
)
modes = st.sampled_from([td.modes.TRAIN, td.modes.EVAL, td.modes.PREDICT, td.modes.GLOBAL])


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Any, str, td.modes]:
    way = draw(st.sampled_from(["save_scalar", "save_tensor", "record_tensor_value"]))
    value: Any = draw(st.floats()) if way == "save_scalar" else torch.zeros(draw(shapes), dtype=draw(dtypes))
    return way, value, draw(names), draw(modes)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(calls(), names.filter(bool)), min_size=1, max_size=6))
def test_whatever_a_script_saves_its_run_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, saved: list[tuple[tuple[str, Any, str, td.modes], str]]
) -> None:
    place = tmp_path_factory.mktemp("fuzz") / "run"
    ring = td.RingConfig(ring_bytes=1 << 20, slots=256, names_bytes=1 << 22)
    with Hook(place, flusher="thread", ring=ring, save_config=td.SaveConfig(save_interval=1)) as hook:
        for (way, value, name, mode), collection in saved:
            hook.set_mode(mode)
            more = (collection,) if way == "save_tensor" else ()
            getattr(hook, way)(name, value, *more)
        report = hook.close()
    assert report is not None
    assert report.drained
    run = td.create_trial(str(place))
    rows = run.rows().to_pylist()
    for name in run.tensor_names():
        run.tensor(name).steps()
    assert {row["kind"] for row in rows} <= {kind.label for kind in TensorKind}
    run.collections()
    run.missing()
    assert set(run.notes()) <= {"names_left_out", "not_recorded"}
