"""The callback for Lightning's Trainer, on trainings of a tiny module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import tdcore as td
from tdcore.format.layout import stop_key

pytest.importorskip("lightning")
import lightning.pytorch as pl

from tdcore.hooks.lightning import HookCallback
from tests.waiting import wait_until

# warnings of the library, which differ between its versions
pytestmark = pytest.mark.filterwarnings("ignore")
OPTIONS: dict[str, Any] = {
    "flusher": "thread",
    "save_config": td.SaveConfig(save_interval=1),
    "include_collections": ["gradients", "losses"],
    "include_regex": "^net.0_output",
    "ring": td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=1 << 20),
}


class Classifier(pl.LightningModule):  # type: ignore[misc]  # the library is not installed everywhere
    """A module that calls its parts instead of its own forward.

    Records losses, hidden values and gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.losses: list[float] = []
        self.hidden: list[Any] = []
        self.gradients: list[Any] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        hidden = self.net[0](batch[0])
        loss = nn.functional.cross_entropy(self.net[1:](hidden), batch[1])
        self.hidden.append(hidden.detach().numpy().copy())
        self.losses.append(float(loss))
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.net(batch[0])

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        weight: Any = self.net[2].weight
        self.gradients.append(weight.grad.numpy().copy())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(folder: Path, *callbacks: Any, steps: int = 4, resume: str | None = None) -> tuple[Any, Classifier]:
    """Train with two batches per step and a validation after every eight batches."""
    torch.manual_seed(0)
    module = Classifier()
    rows: Any = [(torch.randn(4), torch.tensor(number % 3)) for number in range(16)]
    train, validate = (DataLoader[Any](part, batch_size=2) for part in (rows, rows[:4]))
    keep = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=3, save_top_k=-1, filename="{step}")
    trainer = pl.Trainer(
        max_steps=steps,
        accumulate_grad_batches=2,
        callbacks=[keep, *callbacks],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, train, validate, ckpt_path=resume)
    return trainer, module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Classifier:
    return fit(folder / "plain")[1]


@pytest.fixture(scope="module")
def captured(folder: Path) -> Classifier:
    return fit(folder / "captured", HookCallback(folder / "run", **OPTIONS))[1]


@pytest.mark.supports("Lightning", "losses")
def test_losses_are_bit_identical_with_the_callback_and_without(
    plain: Classifier, captured: Classifier
) -> None:
    assert captured.losses == plain.losses
    assert len(captured.losses) == 8
    for mine, other in zip(captured.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


@pytest.mark.supports("Lightning", "values")
def test_what_is_recorded_is_what_the_module_saw(
    folder: Path, plain: Classifier, captured: Classifier
) -> None:
    run = td.create_trial(str(folder / "run"), attempt=0)
    steps = run.steps(mode=td.modes.TRAIN)
    hidden, loss = run.tensor("net.0_output_0"), run.tensor("loss_output_0")
    for step, expected in enumerate(plain.hidden):
        np.testing.assert_array_equal(hidden.value(step, mode=td.modes.TRAIN), expected)
    for step, whole in enumerate(plain.losses):  # the trainer divides the loss by 2, for two batches per step
        assert loss.value(step, mode=td.modes.TRAIN) == pytest.approx(whole / 2, rel=1e-6)
    gradient = run.tensor("gradient/Classifier_net.2.weight")
    found = [gradient.value(step, mode=td.modes.TRAIN) for step in steps if step % 2]
    assert len(found) == len(plain.gradients) == 4
    for value, expected in zip(found, plain.gradients, strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.supports("Lightning", "breaks")
def test_validations_are_steps_of_their_own_mode_and_the_end_is_clean(
    folder: Path, captured: Classifier
) -> None:
    run = td.create_trial(str(folder / "run"), attempt=0)
    assert run.steps(mode=td.modes.TRAIN) == list(range(8))
    assert run.steps(mode=td.modes.EVAL) == [0, 1]  # without the sanity check before the training
    assert run.ends()["worker_0", 0].clean
    assert not any(module._forward_hooks for module in captured.modules())


@pytest.mark.supports("Lightning", "values")
def test_a_training_resumed_from_a_checkpoint_goes_on_counting_there(
    folder: Path, captured: Classifier
) -> None:
    path = folder / "captured" / "step=3.ckpt"
    _, module = fit(folder / "again", HookCallback(folder / "run", **OPTIONS), resume=str(path))
    assert len(module.losses) == 2
    second = td.create_trial(str(folder / "run"), attempt=1)
    assert second.steps(mode=td.modes.TRAIN) == [6, 7]
    assert td.create_trial(str(folder / "run")).steps(mode=td.modes.TRAIN) == list(range(8))


def test_a_request_to_stop_ends_the_training_as_the_trainer_does(tmp_path: Path) -> None:
    callback = HookCallback(tmp_path / "run", **OPTIONS)

    class Asks(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
            if trainer.global_step == 2:
                path = tmp_path / "run" / stop_key(0)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps({"reason": "enough"}))
                hook = callback.hook
                assert hook is not None
                session = hook._session
                assert session is not None
                wait_until(lambda: session.stop_request() is not None, "the flusher has seen the request")

    trainer, _ = fit(tmp_path / "out", callback, Asks(), steps=50)
    assert trainer.global_step < 8


def test_an_exception_in_the_training_closes_the_run(tmp_path: Path) -> None:
    class Breaks(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            raise ArithmeticError("the script's own")

    with pytest.raises(ArithmeticError):
        fit(tmp_path / "out", HookCallback(tmp_path / "run", **OPTIONS), Breaks())
    assert td.create_trial(str(tmp_path / "run")).ends()["worker_0", 0].clean


class CallsItself(Classifier):
    """A module that calls its own forward, and more layers after it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(x)
        return found

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self(batch[0])), batch[1])


def test_what_follows_the_modules_own_forward_is_part_of_the_step(tmp_path: Path) -> None:
    callback = HookCallback(tmp_path / "run", **{**OPTIONS, "include_collections": ["inputs", "outputs"]})
    trainer = pl.Trainer(
        max_steps=2,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = CallsItself()
    module.on_before_optimizer_step = lambda optimizer: None  # type: ignore[method-assign]
    rows: Any = [(torch.randn(4), torch.tensor(number % 3)) for number in range(8)]
    trainer.fit(module, DataLoader[Any](rows, batch_size=2))
    trial = td.create_trial(str(tmp_path / "run"))
    for name in ("CallsItself_input_0", "net.0_output_0", "net_output_0", "head_output_0"):
        assert trial.tensor(name).steps() == [0, 1], name
        assert trial.tensor(name).value(0, call=0).shape[0] == 2
    assert not trial.notes().get("never_called")


@pytest.mark.supports("Lightning", "values")
def test_a_step_has_the_epoch_of_the_trainer(tmp_path: Path) -> None:
    fit(tmp_path / "captured", HookCallback(tmp_path / "run", **OPTIONS), steps=6)
    run = td.create_trial(str(tmp_path / "run"))
    steps = [(mode, step) for mode in (td.modes.TRAIN, td.modes.EVAL) for step in run.steps(mode)]
    epochs = [run.epoch(run.global_step(mode, step)) for mode, step in steps]
    assert epochs == [0] * 8 + [1] * 4 + [0] * 2  # 8 batches in an epoch, then 2 batches of validation
