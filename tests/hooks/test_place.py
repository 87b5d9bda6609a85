"""A hook that was created too early, with the wrong rank, logs a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from .conftest import MakeHook


def test_a_hook_that_was_made_before_the_job_says_that_it_came_too_early(
    make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook = make_hook()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    hook.register_module(nn.Linear(2, 2))
    assert "created as rank 0 of 1, but this process is now rank 1 of 2" in caplog.text
    hook.close()
    document = json.loads((Path(hook.out_dir) / "collections.json").read_text())
    assert "init_process_group()" in document["attempts"]["0"]["place"]
