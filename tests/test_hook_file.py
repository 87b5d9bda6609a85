"""Configuration files of `tdcore run`, and the priority of the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tdcore as td
from tdcore.config.hook_config import HookConfig
from tdcore.config.hook_file import load_hook_file
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.launch.run import chosen_config

ROOT = Path(__file__).resolve().parents[1]


def load(tmp_path: Path, text: str, name: str = "hook.yaml") -> HookConfig:
    (tmp_path / name).write_text(text)
    return load_hook_file(tmp_path / name, out_dir="runs/given")


def test_the_file_in_the_page_is_read(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/run.md").read_text(), re.DOTALL | re.MULTILINE)
    config = load(tmp_path, text)
    assert config.out_dir == "runs/demo"
    assert config.save_config.get_save_config(td.modes.TRAIN).save_interval == 10
    assert config.save_config.get_save_config(td.modes.EVAL).save_interval == 100
    assert config.reduction_config == td.ReductionConfig(norms=["l2"])
    assert config.include_collections == ("weights", "gradients")
    assert config.rules == ("vanishing_gradient",)
    mine = td.CollectionConfig(name="mine", include_regex="relu", save_config=SaveConfig(save_interval=5))
    assert config.collections == (mine,)


def test_a_mode_takes_what_it_leaves_open_from_all_modes(tmp_path: Path) -> None:
    config = load(tmp_path, "save_config: {save_interval: 7, start_step: 2, train: {end_step: 9}}")
    found = config.save_config.get_save_config(td.modes.TRAIN)
    assert found == SaveConfigMode(save_interval=7, start_step=2, end_step=9)


def test_what_a_file_leaves_out_is_as_in_a_hook(tmp_path: Path) -> None:
    assert load(tmp_path, "{}", "hook.json") == HookConfig(out_dir="runs/given")
    assert load(tmp_path, "") == HookConfig(out_dir="runs/given")


def test_a_setting_that_is_left_empty_is_the_default(tmp_path: Path) -> None:
    config = load(tmp_path, "{reduction_config: {norms: , save_raw_tensor: }, collections: , rules: }")
    assert config == HookConfig(out_dir="runs/given", reduction_config=td.ReductionConfig())


def test_the_older_form_is_read_and_needs_no_place(tmp_path: Path) -> None:
    document = {"HookParameters": {"save_interval": "3"}, "CollectionConfigurations": []}
    config = load(tmp_path, json.dumps(document), "hook.json")
    assert (config.out_dir, config.save_config.save_interval) == ("runs/given", 3)
    config = load(tmp_path, json.dumps({**document, "LocalPath": "runs/own"}), "hook.json")
    assert config.out_dir == "runs/own"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("save_intervall: 3", "unknown key 'save_intervall'"),
        (
            "save_config: {save_intervall: 3}",
            "save_config has an unknown key .* did you mean 'save_interval'",
        ),
        ("save_config: {evaluate: {}}", "unknown key 'evaluate'"),
        ("save_config: {save_interval: 0}", "save_interval must be at least 1"),
        ("save_config: 3", "save_config must be a mapping of names to values, got int"),
        ("reduction_config: {norms: [l3]}", "norms must be among l1, l2"),
        ("collections: {name: a}", "collections must be a list"),
        ("collections: [{include_regex: a}]", r"collections\[0\] needs a name"),
        ("collections: [{name: a, save_config: {eval: 3}}]", r"collections\[0\]: save_config.eval must be"),
        ("include_regex: '('", "not a regular expression"),
        ("out_dir: a\nout_dir: b", "'out_dir' is given twice"),
        ("- a", "the file must be a mapping of names to values, got list"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_file_and_the_place(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=f"hook.yaml: .*{says}"):
        load(tmp_path, text)


def test_without_anything_it_is_what_watch_captures() -> None:
    config = chosen_config(["examples/train.py", "--out", "of the script"])
    assert config.out_dir == str(Path("runs/train").absolute())
    assert config.save_config.save_interval == 10
    assert config.reduction_config == td.ReductionConfig()
    assert config.include_collections == ("weights", "biases", "gradients", "losses", "outputs")


def test_the_command_line_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hook.yaml").write_text(
        "{out_dir: s3://bucket/file, rules: [dead_relu], include_collections: [all], save_all: true}"
    )
    monkeypatch.setenv("TDCORE_CONFIG", str(tmp_path / "hook.yaml"))
    assert chosen_config(["train.py"]).out_dir == "s3://bucket/file"
    options = ["--out", str(tmp_path / "a"), "--save-interval", "3", "--collections", "weights, biases"]
    config = chosen_config([*options, "--workers", "all", "-r", "loss_spike", "-m", "package.train"])
    assert config == HookConfig(
        out_dir=str(tmp_path / "a"),
        save_config=SaveConfig(save_interval=3),
        include_collections=["weights", "biases"],
        include_workers="all",
        rules=["dead_relu", "loss_spike"],
        save_all=True,
    )
