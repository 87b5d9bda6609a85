"""The exceptions form the tree in the docstring of errors.py, and can be sent between processes."""

from __future__ import annotations

import pickle
import re

import pytest

from tdcore import errors

_CLASSES = {name: getattr(errors, name) for name in errors.__all__ if name != "SinkErrorKind"}


def drawn_tree() -> dict[str, str]:
    """Return error -> its parent, read from the drawing."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    (?P<lead>[│├└─ ]*)(?P<name>[A-Z]\w+)", line)
        if match is not None:
            depth = len(match["lead"]) // 4
            path = [*path[:depth], match["name"]]
            if depth:
                parents[match["name"]] = path[depth - 1]
    return parents


def test_drawn_tree_is_the_real_one() -> None:
    drawn = drawn_tree()
    assert set(drawn) | {"TdcoreError"} == set(_CLASSES)
    for name, parent in drawn.items():
        assert _CLASSES[name].__bases__[0].__name__ == parent


def test_all_names_are_exported_and_sorted() -> None:
    assert errors.__all__ == sorted(errors.__all__)
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert defined == set(_CLASSES)


@pytest.mark.parametrize(
    "error",
    [
        errors.SinkError("no room", kind="full", errno=28),
        errors.SinkKeyError("nothing there"),
        errors.StopTraining("loss is NaN", step=7, requested_by="rule"),
        errors.RuleEvaluationConditionMet("Vanishing", 3),
        errors.TensorUnavailableForStep("gone", reason="lost", has_statistics=True),
        errors.InvalidWorker("no worker_3"),
    ],
)
def test_errors_survive_a_trip_between_processes(error: errors.TdcoreError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_built_in_kinds_of_error_are_kept() -> None:
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.RunNotFound, FileNotFoundError)
    assert issubclass(errors.SinkError, OSError)
    assert issubclass(errors.WaitTimeout, TimeoutError)


def test_messages_are_shown_as_they_are_written() -> None:
    assert str(errors.InvalidWorker("it has 'a'")) == "it has 'a'"
    assert str(errors.SinkError("full up", kind="full", errno=28)) == "full up"
    assert str(errors.StopTraining("why", step=3)) == "training stop requested at global step 3: why"
    at = errors.StopTraining("why", step=3, mode="TRAIN", mode_step=2)
    assert str(at) == "training stop requested at TRAIN step 2 (global 3): why"
    assert "resulted in the condition being met" in str(errors.RuleEvaluationConditionMet("R", 2))
