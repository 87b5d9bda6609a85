"""The hook as a callback of Hugging Face's Trainer.

    from tdcore.hooks.transformers import HookCallback

    trainer = Trainer(model=model, args=args, callbacks=[HookCallback("runs/demo", save_all=True)])

A run is one `trainer.train()`. A step is one forward, so with gradient accumulation several belong to one
step of the trainer; evaluations within the training are steps of mode EVAL. A request to stop sets
`control.should_training_stop`. The trainer's checkpoints carry how far steps are counted, and
`train(resume_from_checkpoint=...)` goes on from there. Adds nothing that Hook cannot do.
"""

from __future__ import annotations

import os
from typing import Any

from torch import nn
from transformers import TrainerCallback

from tdcore.hooks.pytorch.hook import Hook
from tdcore.hooks.pytorch.training import Training

__all__ = ["HookCallback"]

_STATE = "tdcore"  # our entry in what the trainer keeps for callbacks


class HookCallback(TrainerCallback):  # type: ignore[misc]  # the library is not installed everywhere
    """Captures a Trainer's training. Arguments: those of tdcore.hooks.pytorch.Hook."""

    def __init__(self, out_dir: str | os.PathLike[str], **options: Any) -> None:
        self._training = Training(out_dir, options)

    @property
    def hook(self) -> Hook | None:
        """The hook, for scalars and tensors of the script's own; None before the training begins."""
        return self._training.hook

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: nn.Module | None = None,
        optimizer: Any = None,
        **others: Any,
    ) -> None:
        """Makes the hook, registers the model and its optimizer, and goes on where a checkpoint was."""
        assert model is not None, "the trainer always names its model"
        plain = getattr(optimizer, "optimizer", optimizer)  # not the wrapper that goes round it
        resumed = state.stateful_callbacks.get(_STATE)
        self._training.begin(model, [plain], processes=args.world_size, resumed=resumed)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        """Keeps how far steps are counted for the next checkpoint; asks the trainer to stop, when asked."""
        if self._training.hook is not None:
            state.stateful_callbacks[_STATE] = self._training.hook.state_dict()
        if self._training.stop_asked:
            control.should_training_stop = True
        return control

    on_substep_end = on_step_end
    on_evaluate = on_step_end

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Closes the hook."""
        self._training.end()
