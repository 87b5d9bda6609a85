"""A version of PyTorch that is too old is named in the log and in the run."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.torch_version import TorchVersion

from tdcore.trial import create_trial
from tests.hooks.conftest import MakeHook


@pytest.mark.parametrize("version", ["2.3.1+cu121", "1.13.1", "2.3.0a0+nv24.3"])
def test_an_old_version_is_named_in_the_log_and_in_the_run(
    version: str, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with caplog.at_level(logging.WARNING, logger="tdcore"):
        hook = make_hook()
    hook.register_module(nn.Linear(2, 2))
    hook.close()
    warning = f"PyTorch {version} is older than 2.4"
    assert sum(warning in record.getMessage() for record in caplog.records) == 1
    (noted,) = create_trial(str(hook.out_dir)).notes()["old_framework"]
    assert noted.startswith(warning)


@pytest.mark.parametrize("version", ["2.4.0a0+nv24.6", "2.4.0", "2.13.0+cpu", "3.0.0", "unknown"])
def test_a_supported_or_unknown_version_is_not_reported(
    version: str, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with caplog.at_level(logging.WARNING, logger="tdcore"):
        make_hook()
    assert not [record for record in caplog.records if "is older than" in record.getMessage()]
