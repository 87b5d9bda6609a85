"""The callback for Hugging Face's Trainer, on trainings of a tiny language model with random weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdcore as td
from tdcore.format.layout import stop_key

pytest.importorskip("transformers")
import transformers

from tdcore.hooks.transformers import HookCallback
from tests.waiting import wait_until

# warnings of the library, which differ between its versions
pytestmark = pytest.mark.filterwarnings("ignore")
GRADIENT = "transformer.h.0.mlp.c_fc.weight"
OPTIONS: dict[str, Any] = {
    "flusher": "thread",
    "save_config": td.SaveConfig(save_interval=1),
    "include_collections": ["gradients", "losses"],
    "ring": td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=1 << 20),
}


class Watch(transformers.TrainerCallback):  # type: ignore[misc]  # the library is not installed everywhere
    """A callback that records the gradients that the optimizer gets, by the trainer's step."""

    def __init__(self) -> None:
        self.gradients: dict[int, Any] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **others: Any) -> None:
        self.gradients[state.global_step] = model.get_parameter(GRADIENT).grad.numpy().copy()


def trainer(folder: Path, *callbacks: Any, steps: int = 4) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    rows = [{"input_ids": (ids := torch.randint(0, 16, (8,))), "labels": ids} for _ in range(24)]
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=steps,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=3,
        logging_steps=1,
        seed=7,
    )
    return transformers.Trainer(
        model, args, train_dataset=rows, eval_dataset=rows[:8], callbacks=list(callbacks)
    )


def losses(trained: Any) -> list[float]:
    return [
        entry[key] for entry in trained.state.log_history for key in ("loss", "eval_loss") if key in entry
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="module")
def plain(folder: Path) -> tuple[Any, Watch]:
    watch = Watch()
    one = trainer(folder / "plain", watch)
    one.train()
    return one, watch


@pytest.fixture(scope="module")
def captured(folder: Path) -> Any:
    one = trainer(folder / "captured", HookCallback(folder / "run", **OPTIONS))
    one.train()
    return one


@pytest.mark.supports("Hugging Face Trainer", "losses")
def test_losses_are_bit_identical_with_the_callback_and_without(
    plain: tuple[Any, Watch], captured: Any
) -> None:
    assert losses(captured) == losses(plain[0])
    assert len(losses(captured)) == 4 + 2
    for mine, other in zip(captured.model.parameters(), plain[0].model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


@pytest.mark.supports("Hugging Face Trainer", "values")
def test_gradients_are_those_that_the_optimizer_gets(
    folder: Path, captured: Any, plain: tuple[Any, Watch]
) -> None:
    run = td.create_trial(str(folder / "run"))
    tensor = run.tensor(f"gradient/GPT2LMHeadModel_{GRADIENT}")
    rows = run.rows(f"^gradient/GPT2LMHeadModel_{GRADIENT}$").to_pylist()
    found = [tensor.value(row["step"]) for row in rows if row["nbytes"]]
    for expected in plain[1].gradients.values():
        assert any(np.array_equal(value, expected) for value in found)


@pytest.mark.supports("Hugging Face Trainer", "breaks")
def test_evaluations_are_steps_of_their_own_mode_and_the_end_is_clean(folder: Path, captured: Any) -> None:
    run = td.create_trial(str(folder / "run"))
    rows = run.rows("loss", mode=td.modes.EVAL).to_pylist()
    assert sorted({row["mode_step"] for row in rows}) == list(range(4))  # twice 8 rows, 4 in a batch
    rows = run.rows("loss", mode=td.modes.TRAIN).to_pylist()
    calls = sorted({(row["mode_step"], row["call"]) for row in rows})
    assert calls == [(step, call) for step in range(4) for call in (0, 1)]  # 4 steps of 2 forwards
    assert all(end.clean for end in run.ends().values())


@pytest.mark.supports("Hugging Face Trainer", "values")
def test_a_training_resumed_from_a_checkpoint_goes_on_counting_there(folder: Path, captured: Any) -> None:
    other = trainer(folder / "captured", HookCallback(folder / "run", **OPTIONS))
    other.train(resume_from_checkpoint=str(folder / "captured" / "checkpoint-3"))
    run = td.create_trial(str(folder / "run"))
    assert run.attempts == [0, 1]
    second = td.create_trial(str(folder / "run"), attempt=1)
    assert second.steps(mode=td.modes.TRAIN) == [3]
    assert min(second.steps()) == 5  # after 3 updates and the 2 forwards of an evaluation
    assert losses(other) == losses(captured)


def test_a_request_to_stop_ends_the_training_as_the_trainer_does(tmp_path: Path) -> None:
    callback = HookCallback(tmp_path / "run", **OPTIONS)

    class Asks(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == 2:
                path = tmp_path / "run" / stop_key(0)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps({"format": 1, "reason": "enough"}))
                hook = callback.hook
                assert hook is not None
                session = hook._session
                assert session is not None
                wait_until(lambda: session.stop_request() is not None, "the flusher has seen the request")

    one = trainer(tmp_path / "out", callback, Asks(), steps=50)
    one.train()
    assert one.state.global_step < 5
    assert callback.hook is not None
    assert callback.hook.close() is not None


@pytest.mark.supports("Hugging Face Trainer", "values")
def test_a_step_has_the_epoch_of_the_trainer(tmp_path: Path) -> None:
    trainer(tmp_path / "first", HookCallback(tmp_path / "run", **OPTIONS), steps=8).train()
    run = td.create_trial(str(tmp_path / "run"))
    steps = run.steps(td.modes.TRAIN)
    assert [run.epoch(run.global_step(td.modes.TRAIN, step)) for step in steps] == [0] * 6 + [1] * 2
    again = trainer(tmp_path / "first", HookCallback(tmp_path / "run", **OPTIONS), steps=8)
    again.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-3"))
    run = td.create_trial(str(tmp_path / "run"), attempt=1)
    steps = run.steps(td.modes.TRAIN)
    assert [run.epoch(run.global_step(td.modes.TRAIN, step)) for step in steps] == [0] * 3 + [1] * 2


class EightRows(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """A data set without a length."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(8):
            ids = torch.randint(0, 16, (8,))
            yield {"input_ids": ids, "labels": ids}


def test_epochs_of_a_data_set_without_a_length_are_counted(tmp_path: Path) -> None:
    one = trainer(tmp_path / "trainer", HookCallback(tmp_path / "run", **OPTIONS), steps=6)
    one.train_dataset = EightRows()
    one.train()
    run = td.create_trial(str(tmp_path / "run"))
    steps = run.steps(td.modes.TRAIN)
    found = [run.epoch(run.global_step(td.modes.TRAIN, step)) for step in steps]
    assert found == [0, 0, 1, 1, 2, 2]  # two updates of two micro-batches of two rows
