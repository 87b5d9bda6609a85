"""include_workers: one, all, or a list; in Python and in smdebug's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from tdcore.config.hook_config import HookConfig
from tdcore.config.hook_json import parse_hook_config
from tdcore.config.workers import expected_workers
from tdcore.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("one", ["worker_0"]),
        ("all", ["worker_0", "worker_1", "worker_2"]),
        ([2, 0], ["worker_0", "worker_2"]),
        (("worker_1", 1), ["worker_1"]),
    ],
)
def test_those_workers_are_expected_that_were_named(given: Any, expected: list[str]) -> None:
    assert expected_workers(given, 3, pytest.fail) == expected


def test_a_worker_that_the_job_does_not_have_is_told() -> None:
    said: list[str] = []
    assert expected_workers([1, 7], 2, said.append) == ["worker_1"]
    assert said == ["include_workers names worker_7, but this job has 2 workers"]


@pytest.mark.parametrize("wrong", ["some", [], [-1], [True], [1.5], ["no/name"], None, 3])
def test_anything_else_is_refused_with_what_to_write(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="include_workers"):
        HookConfig(out_dir="runs/demo", include_workers=wrong)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("all", "all"),
        ("0, 2", ("worker_0", "worker_2")),
        ([0, "worker_3"], ("worker_0", "worker_3")),
    ],
)
def test_the_json_configuration_takes_lists(written: Any, expected: Any) -> None:
    document = {"LocalPath": "runs/demo", "HookParameters": {"include_workers": written}}
    config = parse_hook_config(document)
    assert config.include_workers == expected
    assert config.to_json_dict()["include_workers"] == (
        expected if isinstance(expected, str) else list(expected)
    )
