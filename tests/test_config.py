"""SaveConfig, ReductionConfig, HookConfig and the JSON form."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.config.hook_config import HookConfig
from tdcore.config.hook_json import load_hook_config, parse_hook_config
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.modes import modes


def saved(config: SaveConfigMode, end: int = 20) -> list[int]:
    return [step for step in range(end) if config.should_save_step(step)]


def test_every_500th_step_is_saved_by_default_and_step_0_is() -> None:
    config = SaveConfig()
    assert [step for step in range(1001) if config.should_save_step(modes.TRAIN, step)] == [0, 500, 1000]


def test_a_step_is_saved_when_the_interval_divides_it_within_start_and_end() -> None:
    assert saved(SaveConfigMode(save_interval=5, start_step=3, end_step=15)) == [5, 10]


def test_listed_steps_are_saved_beside_the_interval_and_outside_of_start_and_end() -> None:
    config = SaveConfigMode(save_interval=5, start_step=4, end_step=11, save_steps=[1, 7, 18])
    assert saved(config) == [1, 5, 7, 10, 18]


@given(
    interval=st.integers(1, 9),
    start=st.integers(0, 12),
    end=st.none() | st.integers(0, 25),
    listed=st.lists(st.integers(0, 30), max_size=4),
    step=st.integers(0, 30),
)
def test_the_next_saved_step_is_the_first_that_the_save_test_takes(
    interval: int, start: int, end: int | None, listed: list[int], step: int
) -> None:
    config = SaveConfigMode(save_interval=interval, start_step=start, end_step=end, save_steps=listed)
    expected = next((later for later in range(step, 60) if config.should_save_step(later)), None)
    assert config.next_saved_step(step) == expected


def test_a_mode_has_its_own_settings_and_the_others_have_the_general_ones() -> None:
    config = SaveConfig(save_interval=10, mode_save_configs={modes.EVAL: SaveConfigMode(save_interval=2)})
    assert config.should_save_step(modes.EVAL, 2)
    assert not config.should_save_step(modes.TRAIN, 2)
    assert config.should_save_step(modes.PREDICT, 10)


def test_a_dict_of_modes_is_a_save_config() -> None:
    config = SaveConfig.parse({modes.TRAIN: SaveConfigMode(save_interval=3)})
    assert config.should_save_step(modes.TRAIN, 3)
    assert not config.should_save_step(modes.EVAL, 3)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"save_interval": 0}, "save_interval must be at least 1, got 0"),
        ({"save_interval": 1.5}, "save_interval must be a whole number"),
        ({"save_interval": True}, "save_interval must be a whole number"),
        ({"start_step": -1}, "start_step must be at least 0"),
        ({"save_steps": "1,2"}, "save_steps must be a list"),
        ({"mode_save_configs": {"train": SaveConfigMode()}}, "modes are modes.TRAIN"),
        ({"mode_save_configs": {modes.TRAIN: 3}}, "modes.TRAIN needs a SaveConfigMode"),
    ],
)
def test_a_save_config_that_cannot_work_says_why(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SaveConfig(**wrong)


def test_a_misspelled_reduction_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"reductions must be among min, max, mean, std, variance, sum, prod; got 'avg'"
    ):
        ReductionConfig(reductions=["mean", "avg"])
    with pytest.raises(ConfigError, match="abs_norms must be among l1, l2; got 'l3'"):
        ReductionConfig(abs_norms=["l3"])


def test_shapes_cannot_be_left_out() -> None:
    with pytest.raises(ConfigError, match="every row has the shape"):
        ReductionConfig(save_shape=False)


def test_configurations_are_values_that_compare_and_pickle() -> None:
    config = HookConfig(
        out_dir="x", save_config=SaveConfig(save_steps=[3, 1]), reduction_config=ReductionConfig(norms=["l2"])
    )
    assert config.save_config.save_steps == (1, 3)
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match="include_regex: '\\(' is not a regular expression"):
        HookConfig(out_dir="x", include_regex="(")


FULL = {
    "S3OutputPath": "s3://bucket/prefix",
    "LocalPath": "runs/json",
    "HookParameters": {
        "save_interval": "100",
        "eval.save_interval": "10",
        "save_steps": "1,2,3",
        "end_step": "1000",
        "include_regex": "relu,tanh",
        "reductions": "min,abs_max,l1_norm,abs_l2_norm",
        "save_all": "false",
        "include_workers": "all",
        "export_tensorboard": "false",
    },
    "CollectionConfigurations": [
        {"CollectionName": "gradients"},
        {
            "CollectionName": "mine",
            "CollectionParameters": {
                "include_regex": "fc.*output",
                "train.save_interval": 5,
                "start_step": "2",
                "save_histogram": "True",
                "save_raw_tensor": "true",
            },
        },
    ],
}


def test_the_older_json_is_read_in_full() -> None:
    config = parse_hook_config(FULL)
    assert config.out_dir == "runs/json"
    assert tuple(config.include_regex) == ("relu", "tanh")
    assert config.include_workers == "all"
    assert config.save_config.get_save_config(modes.TRAIN).to_json_dict() == {
        "save_interval": 100,
        "start_step": 0,
        "end_step": 1000,
        "save_steps": [1, 2, 3],
    }
    assert config.save_config.get_save_config(modes.EVAL).save_interval == 10
    assert config.reduction_config == ReductionConfig(
        reductions=["min"], abs_reductions=["max"], norms=["l1"], abs_norms=["l2"]
    )
    gradients, mine = config.collections
    assert gradients.save_config is None
    assert mine.reduction_config == ReductionConfig(save_raw_tensor=True)


def test_a_collection_takes_what_it_leaves_open_from_the_hook_setting_by_setting() -> None:
    mine = parse_hook_config(FULL).collections[1].save_config
    assert mine is not None
    train, evaluate = mine.get_save_config(modes.TRAIN), mine.get_save_config(modes.EVAL)
    assert (train.save_interval, train.start_step, train.end_step) == (5, 2, 1000)
    assert (evaluate.save_interval, evaluate.start_step) == (10, 2)


def test_without_reductions_the_raw_tensor_is_saved() -> None:
    assert parse_hook_config({"LocalPath": "x"}).reduction_config is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"HookParameters": {"save_interval": "often"}}, "save_interval must be a whole number, got 'often'"),
        ({"HookParameters": {"save_all": "perhaps"}}, "save_all must be true or false"),
        ({"HookParameters": {"reductions": "mean,avg"}}, "each also with the prefix abs_; got 'avg'"),
        ({"HookParameters": {"train.save_steps": "1,x"}}, "train.save_steps must be a whole number"),
        ({"HookParameters": []}, "HookParameters must be a JSON object"),
        ({"LocalPath": None}, "LocalPath"),
        ({"CollectionConfigurations": [{}]}, "lacks its CollectionName"),
        (
            {
                "CollectionConfigurations": [
                    {"CollectionName": "a", "CollectionParameters": {"include_regex": "("}}
                ]
            },
            "collection 'a': include_regex",
        ),
    ],
)
def test_a_fault_in_the_json_names_the_key(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_hook_config({"LocalPath": "x", **change})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"HookParameters": {"save_intervall": "1"}}, "did you mean 'save_interval'"),
        ({"LocalPaht": "y"}, "did you mean 'LocalPath'"),
        (
            {"CollectionConfigurations": [{"CollectionName": "a", "CollectionParameters": {"x": 1}}]},
            "collection 'a' has an unknown key 'x'; known keys",
        ),
        ({"CollectionConfigurations": [{"CollectionName": "a", "Tags": []}]}, "has an unknown key 'Tags'"),
    ],
)
def test_a_key_of_the_json_that_is_not_known_is_a_warning(
    change: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = parse_hook_config({"LocalPath": "x", **change})
    assert config.save_config == SaveConfig()
    assert says in caplog.text


def test_the_place_of_the_json_is_the_first_of_its_three_keys() -> None:
    assert parse_hook_config({"S3Path": "s3://b/p"}).out_dir == "s3://b/p"
    assert parse_hook_config({"S3Path": "s3://b/p", "S3OutputPath": "s3://b/q"}).out_dir == "s3://b/q"
    assert parse_hook_config({"S3Path": "s3://b/p", "LocalPath": "x"}).out_dir == "x"


def test_the_tensorboard_export_is_switched_on_in_the_json() -> None:
    parameters = {"export_tensorboard": "true", "tensorboard_dir": "tb"}
    config = parse_hook_config({"LocalPath": "runs/x", "HookParameters": parameters})
    assert config.tensorboard_folder == "tb/x"
    off = parse_hook_config({"LocalPath": "runs/x", "HookParameters": {"tensorboard_dir": "None"}})
    assert off.tensorboard_folder is None


def test_the_file_is_found_by_argument_then_by_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("argument", "new", "old"):
        (tmp_path / name).write_text(json.dumps({"LocalPath": f"runs/{name}"}))
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(tmp_path / "old"))
    assert load_hook_config().out_dir == "runs/old"
    monkeypatch.setenv("TDCORE_CONFIG", str(tmp_path / "new"))
    assert load_hook_config().out_dir == "runs/new"
    assert load_hook_config(tmp_path / "argument").out_dir == "runs/argument"


def test_no_file_or_a_broken_one_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMDEBUG_CONFIG_FILE_PATH", raising=False)
    monkeypatch.delenv("TDCORE_CONFIG", raising=False)
    with pytest.raises(ConfigError, match="TDCORE_CONFIG"):
        load_hook_config()
    with pytest.raises(ConfigError, match=r"absent.json cannot be read: No such file"):
        load_hook_config(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match=r"broken.json: not JSON: "):
        load_hook_config(tmp_path / "broken.json")


def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.json"
    path.write_text('{"LocalPath": "a", "HookParameters": {"save_interval": "10", "save_interval": "20"}}')
    with pytest.raises(ConfigError, match=r"twice.json: 'save_interval' is given twice"):
        load_hook_config(path)
