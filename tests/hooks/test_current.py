"""The hook that scripts get without passing it around: hooks/current.py."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

import tdcore.smd as smd
from tdcore.errors import ConfigError
from tdcore.hooks import current
from tests.moving import Net, configure, fit


@pytest.fixture(autouse=True)
def _no_hook_is_current(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("TDCORE_CONFIG", "SMDEBUG_CONFIG_FILE_PATH"):
        monkeypatch.delenv(variable, raising=False)
    smd.del_hook()
    yield
    hook = smd.get_hook()
    while hook is not None:
        hook.close()
        hook = smd.get_hook()


def test_a_script_whose_hook_comes_from_the_configuration_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = configure(tmp_path, monkeypatch)
    hook = smd.get_hook(create_if_not_exists=True)
    assert hook is not None
    model = Net()
    hook.register_hook(model)
    fit(smd.get_hook(), model, nn.CrossEntropyLoss())
    hook.close()
    names = smd.create_trial(str(place)).tensor_names()
    assert {"CrossEntropyLoss_output_0", "Net_fc.weight", "gradient/Net_fc.weight"} <= set(names)


def test_the_hook_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, monkeypatch)
    first = smd.get_hook(create_if_not_exists=True)
    assert smd.get_hook(create_if_not_exists=True) is first


def test_a_hook_that_a_function_asks_for_stays_until_the_next_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, monkeypatch)
    first = weakref.ref(smd.get_hook(create_if_not_exists=True) or object())
    gc.collect()
    assert first() is not None
    assert smd.get_hook() is first()


def test_without_a_configuration_there_is_no_hook_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert smd.get_hook(create_if_not_exists=True) is None
    assert "nothing is recorded; set TDCORE_CONFIG" in caplog.text


def test_without_being_told_to_get_hook_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    configure(tmp_path, monkeypatch)
    assert smd.get_hook() is None
    assert caplog.text == ""


def test_the_configuration_may_be_given_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, monkeypatch)
    monkeypatch.delenv("SMDEBUG_CONFIG_FILE_PATH")
    hook = smd.get_hook(str(tmp_path / "hook.json"), True)
    assert hook is not None
    assert hook.out_dir == str(tmp_path / "run")


def test_a_configuration_that_is_not_there_is_an_error_and_no_silence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read"):
        smd.get_hook(str(tmp_path / "absent.json"), create_if_not_exists=True)


def test_the_hook_that_a_script_makes_is_current(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path / "run", dry_run=True)
    assert smd.get_hook() is hook


def test_a_hook_that_was_only_made_ends_with_the_last_reference(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path / "run", dry_run=True)
    reference = weakref.ref(hook)
    del hook
    gc.collect()
    assert reference() is None
    assert smd.get_hook() is None


def test_a_closed_hook_is_current_no_longer_and_the_one_before_it_is(tmp_path: Path) -> None:
    first = smd.Hook(tmp_path / "first", dry_run=True)
    second = smd.Hook(tmp_path / "second", dry_run=True)
    second.close()
    assert smd.get_hook() is first


def test_a_hook_on_a_rank_that_records_nothing_is_current_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    configure(tmp_path, monkeypatch)
    hook = smd.get_hook(create_if_not_exists=True)
    assert hook is not None
    assert smd.get_hook(create_if_not_exists=True) is hook


def test_a_hook_from_a_pickle_does_not_replace_the_current_one(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path / "run", dry_run=True)
    pickle.loads(pickle.dumps(hook))
    assert smd.get_hook() is hook


def test_a_hook_that_is_offered_is_made_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current, "_makers", [])
    current.offer(lambda: smd.Hook(tmp_path / "offered", dry_run=True))
    hook = smd.get_hook(create_if_not_exists=True)
    assert hook is not None
    assert hook.out_dir == str(tmp_path / "offered")
    assert smd.get_hook(create_if_not_exists=True) is hook


def test_set_hook_makes_a_hook_current_and_keeps_it(tmp_path: Path) -> None:
    first = smd.Hook(tmp_path / "first", dry_run=True)
    second = smd.Hook(tmp_path / "second", dry_run=True)
    smd.set_hook(first)
    assert smd.get_hook() is first
    second.close()


def test_set_hook_takes_hooks_only() -> None:
    with pytest.raises(ConfigError, match="set_hook needs a hook, got str"):
        smd.set_hook("hook")  # type: ignore[arg-type]  # the mistake under test


def test_del_hook_forgets_the_hook_and_does_not_close_it(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path / "run", flusher="thread", save_config=smd.SaveConfig(save_interval=1))
    smd.del_hook()
    assert smd.get_hook() is None
    model = Net()
    hook.register_module(model)
    fit(hook, model, nn.CrossEntropyLoss())
    hook.close()
    assert smd.create_trial(str(tmp_path / "run")).steps() == [0, 1, 2, 3]
