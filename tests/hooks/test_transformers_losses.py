"""The loss that Hugging Face's Trainer passes to backward, from every kind of loss computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tdcore as td

pytest.importorskip("transformers")
import transformers

from tdcore.hooks.transformers import HookCallback
from tests.hooks.test_transformers import OPTIONS, trainer

# warnings of the library, which differ between its versions
pytestmark = pytest.mark.filterwarnings("ignore")
STEPS, MICRO_BATCHES = 3, 2


class OwnLoss(transformers.Trainer):  # type: ignore[misc]  # the library is not installed everywhere
    """A Trainer that computes its loss outside of the model, as sentence-transformers and trl do."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits.transpose(1, 2), labels) * 3
        return (loss, outputs) if return_outputs else loss


class NotTheModels(transformers.Trainer):  # type: ignore[misc]
    """A Trainer that adds a term to the loss of the model."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True)
        loss = loss + outputs.logits.square().mean()
        return (loss, outputs) if return_outputs else loss


KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "the model's": (transformers.Trainer, {}),
    "compute_loss": (OwnLoss, {}),
    "a further term": (NotTheModels, {}),
    "label smoothing": (transformers.Trainer, {"label_smoothing_factor": 0.1}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_into_backward_is_the_loss_of_every_micro_batch(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backward: Any = torch.Tensor.backward
    seen: list[float] = []

    def noting(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        seen.append(float(self))
        backward(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "backward", noting)
    base, options = KINDS[kind]
    one = trainer(tmp_path / "out", steps=STEPS)
    for name, value in options.items():
        setattr(one.args, name, value)
    other = base(
        one.model,
        one.args,
        train_dataset=one.train_dataset,
        eval_dataset=one.eval_dataset,
        callbacks=[HookCallback(tmp_path / "run", **OPTIONS)],
    )
    other.train()
    trial = td.create_trial(str(tmp_path / "run"))
    rows = trial.rows("^loss_output_0$").to_pylist()
    assert [(row["mode"], row["mode_step"], row["call"]) for row in rows] == [
        ("TRAIN", step, call) for step in range(STEPS) for call in range(MICRO_BATCHES)
    ]
    loss = trial.tensor("loss_output_0")
    found = [float(loss.value(row["step"], call=row["call"])) for row in rows]
    assert found == seen
    assert "backward" not in vars(other.accelerator)


def test_a_gradient_scaler_has_not_multiplied_the_loss(tmp_path: Path) -> None:
    one = trainer(tmp_path / "out", HookCallback(tmp_path / "run", **OPTIONS), steps=1)
    one.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    one.train()
    loss = td.create_trial(str(tmp_path / "run")).tensor("loss_output_0")
    assert 0.5 < float(loss.value(0)) < 5
