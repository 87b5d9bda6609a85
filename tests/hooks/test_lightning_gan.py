"""A GAN in one LightningModule: with the callback, with two lines of code, and under `tdcore run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.test_run import python

pytest.importorskip("lightning")
import lightning.pytorch as pl

from tdcore.hooks.lightning import HookCallback
from tests.scripts import lightning_gan

# warnings of the library, which differ between its versions
pytestmark = pytest.mark.filterwarnings("ignore")
SCRIPT = Path(lightning_gan.__file__)
fit: Any = lightning_gan.fit  # scripts have no annotations
OPTIONS: dict[str, Any] = {
    "flusher": "thread",
    "save_config": td.SaveConfig(save_interval=1),
    "include_collections": ["gradients", "losses", "outputs"],
    "ring": td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=1 << 20),
}
REAL_THEN_FAKE = [[0], [0, 1]]  # calls of the discriminator in the generator's step and in its own


def calls(trial: Any, name: str) -> list[list[int]]:
    """Return the call indices of a tensor, by training step."""
    rows = trial.rows(f"^{name}$", mode=td.modes.TRAIN).to_pylist()
    return [
        sorted(row["call"] for row in rows if row["mode_step"] == step)
        for step in trial.steps(mode=td.modes.TRAIN)
    ]


def with_value(trial: Any, name: str) -> list[int]:
    rows = trial.rows(f"^{name}$", mode=td.modes.TRAIN).to_pylist()
    return sorted({row["mode_step"] for row in rows if row["status"] == "ok"})


def check_notes(trial: Any) -> None:
    notes = trial.notes()
    assert not notes.get("frozen")
    assert not notes.get("never_called")
    assert not notes.get("faults")


def check_two_steps_to_a_batch(trial: Any) -> None:
    assert trial.steps(mode=td.modes.TRAIN) == list(range(6))
    assert calls(trial, "discriminator_output_0") == REAL_THEN_FAKE * 3
    assert calls(trial, "discriminator.1_output_0") == REAL_THEN_FAKE * 3
    assert calls(trial, "generator_output_0") == [[0]] * 6
    assert with_value(trial, "gradient/GAN_generator.0.bias") == [0, 2, 4]
    assert with_value(trial, "gradient/GAN_discriminator.0.bias") == [1, 3, 5]
    check_notes(trial)


def test_with_the_callback_a_batch_has_all_calls_and_the_gradients_of_both_optimizers(tmp_path: Path) -> None:
    fit(lightning_gan.GAN, [HookCallback(tmp_path / "run", **OPTIONS)])
    trial = td.create_trial(str(tmp_path / "run"))
    assert trial.steps(mode=td.modes.TRAIN) == [0, 1, 2]
    assert calls(trial, "discriminator_output_0") == [[0, 1, 2]] * 3
    assert calls(trial, "generator_output_0") == calls(trial, "loss_output_0") == [[0, 1]] * 3
    for part in ("generator", "discriminator"):
        assert with_value(trial, f"gradient/GAN_{part}.0.bias") == [0, 1, 2], part
    check_notes(trial)


@pytest.mark.parametrize("include", [["gradients", "outputs"], ["gradients"]])
def test_with_two_lines_a_call_after_an_update_begins_the_step(tmp_path: Path, include: list[str]) -> None:
    hook = Hook(tmp_path / "run", **{**OPTIONS, "include_collections": include})

    class Registers(pl.Callback):  # type: ignore[misc]  # the library is not installed everywhere
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            hook.register_module(pl_module)

    module = fit(lightning_gan.GAN, [Registers()])
    hook.close()
    trial = td.create_trial(str(tmp_path / "run"))
    if "outputs" in include:
        check_two_steps_to_a_batch(trial)
    assert trial.steps(mode=td.modes.TRAIN) == list(range(6))
    assert not any(part._forward_hooks for part in module.modules())


@pytest.mark.parametrize("strategy", ["auto", "ddp_find_unused_parameters_true"])
def test_under_tdcore_run_ddp_changes_nothing(tmp_path: Path, strategy: str) -> None:
    options = ["--out", "run", "--save-interval", 1]
    ran = python("-m", "tdcore.run", *options, SCRIPT, "gan", strategy, 1, cwd=tmp_path)
    assert ran.code == 0, ran.err
    trial = td.create_trial(str(tmp_path / "run"))
    check_two_steps_to_a_batch(trial)
    assert calls(trial, "loss_output_0") == [[0]] * 6


def test_modules_after_the_modules_own_forward_have_rows_in_every_step_of_ddp(tmp_path: Path) -> None:
    options = ["--out", "run", "--save-interval", 1]
    ran = python("-m", "tdcore.run", *options, SCRIPT, "classifier", "ddp", 2, cwd=tmp_path)
    assert ran.code == 0, ran.err
    trial = td.create_trial(str(tmp_path / "run"))
    assert trial.steps(mode=td.modes.TRAIN) == [0, 1, 2]
    for name in ("net_output_0", "head_output_0", "loss_output_0"):
        assert calls(trial, name) == [[0]] * 3, name
    assert calls(trial, "Classifier_output_0") == [[0, 1]] * 3  # its forward, and training_step
    for name in ("net", "head"):
        assert with_value(trial, f"gradient/Classifier_{name}.weight") == [0, 1, 2]
    assert not [row for row in trial.rows("^gradient/").to_pylist() if row["status"] != "ok"]
    check_notes(trial)
