"""HookCallback: the hook as a callback of Hugging Face's Trainer.

    from tdcore.hooks.transformers import HookCallback

    trainer = Trainer(model=model, args=args, callbacks=[HookCallback("runs/demo", save_all=True)])

A run is one `trainer.train()`. A step is one step of the trainer: all micro-batches up to the optimizer's
step. Evaluations within the training are steps of mode EVAL. A request to stop sets
`control.should_training_stop`. The trainer's checkpoints contain the step numbers, and
`train(resume_from_checkpoint=...)` continues them. All functions of the callback are also available through
Hook.

The loss is "loss_output_0", with one call for each micro-batch. Its value is the argument that the trainer
passes to `accelerator.backward()`, whether the model, `compute_loss` or a label smoother computed the loss.
This value is divided for gradient accumulation, and a gradient scaler has not scaled it yet. No callback
event receives this value, so `accelerator.backward` is wrapped during the training.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback

from tdcore.config.settings import disabled
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.pytorch.model.introspection import live_instances
from tdcore.hooks.pytorch.trainer_session import TrainerSession, replace_attribute

__all__ = ["HookCallback", "continue_steps"]

_STATE = "tdcore"  # tdcore's entry in the trainer's state of callbacks
_NO_NUMBERS = (
    "the Trainer resumed after step {} from a checkpoint without step numbers of tdcore: "
    "steps of this attempt count from 0"
)


class HookCallback(TrainerCallback):  # type: ignore[misc]  # the library is not installed everywhere
    """Callback that captures one `trainer.train()`.

    Args:
        out_dir: Local folder or URL of the run.
        options: Further arguments of tdcore.hooks.pytorch.Hook.
    """

    def __init__(self, out_dir: str | os.PathLike[str], **options: Any) -> None:
        self._training = TrainerSession(out_dir, options)
        self._wrapped = ExitStack()
        self._epoch: int | None = None  # epoch of the running training; None before the first epoch

    @property
    def hook(self) -> Hook | None:
        """The hook, to record scalars and tensors of the script; None before the training begins."""
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
        """Create the hook, register the model and its optimizer, and continue the checkpoint's steps."""
        assert model is not None, "the trainer always passes its model"
        plain = getattr(optimizer, "optimizer", optimizer)  # the optimizer without its wrapper
        resumed = state.stateful_callbacks.get(_STATE)
        self._wrapped.close()
        self._epoch = None
        hook = self._training.begin(model, [plain], processes=args.world_size, resumed=resumed)
        if disabled():
            return
        trainer = _trainer_of(self)
        if trainer is None:
            hook._warn("the Trainer of this callback was not found, so its losses are not recorded")
            return
        accelerator = trainer.accelerator
        replace_attribute(
            accelerator, "backward", partial(_recorded, hook, accelerator.backward), self._wrapped
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Set the epoch of the following steps.

        `state.epoch` is the number of this epoch only at the start of the training. Later the trainer
        computes it from the length of the data loader, or from max_steps if the data set has no length.
        """
        self._epoch = int(state.epoch or 0) if self._epoch is None else self._epoch + 1
        if self._training.hook is not None:
            self._training.hook.set_epoch(self._epoch)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        """Store the step numbers for the next checkpoint; stop the trainer after a stop request."""
        if self._training.hook is not None and not disabled():
            state.stateful_callbacks[_STATE] = self._training.hook.state_dict()
        if self._training.stop_requested:
            control.should_training_stop = True
        return control

    on_substep_end = on_step_end
    on_evaluate = on_step_end

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Close the hook."""
        self._wrapped.close()
        self._training.end()


class StepNumbers(TrainerCallback):  # type: ignore[misc]  # the library is not installed everywhere
    """Callback that stores the step numbers of a hook in the trainer's state, a part of all checkpoints."""

    def __init__(self, hook: Hook) -> None:
        self._hook = weakref.ref(hook)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Store the step numbers. The trainer calls this before it saves a checkpoint."""
        hook = self._hook()
        if hook is not None and not hook._off:
            state.stateful_callbacks[_STATE] = hook.state_dict()

    on_substep_end = on_step_end
    on_evaluate = on_step_end

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainerCallback, ()  # copies and pickles of a trainer have a callback that does nothing


def continue_steps(hook: Hook, model: nn.Module) -> str | None:
    """Continue the step numbers of the trainer's checkpoint, for a hook that `tdcore run` made.

    Called before the first forward of the model. Has no effect if no trainer trains the model.

    Returns:
        A message, if the trainer has resumed and its checkpoint has no step numbers.
    """
    for trainer in live_instances(Trainer):
        if getattr(trainer, "is_in_train", False) and any(part is model for part in trainer.model.modules()):
            trainer.add_callback(StepNumbers(hook))
            saved = trainer.state.stateful_callbacks.get(_STATE)
            if saved:
                hook.load_state_dict(saved)
            elif trainer.state.global_step:
                return _NO_NUMBERS.format(trainer.state.global_step)
            return None
    return None


def _trainer_of(callback: TrainerCallback) -> Any:
    """The trainer that calls this callback; None if it is not found."""
    for trainer in live_instances(Trainer):
        handler = getattr(trainer, "callback_handler", None)
        if any(one is callback for one in getattr(handler, "callbacks", ())):
            return trainer
    return None


def _recorded(hook: Hook, backward: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the loss and call the accelerator's own method."""
    if isinstance(loss, torch.Tensor):
        hook.record_tensor_value("loss", loss)
    return backward(loss, *args, **kwargs)
