"""The hook as a callback of Lightning's Trainer.

    from tdcore.hooks.lightning import HookCallback

    trainer = Trainer(callbacks=[HookCallback("runs/demo", save_all=True)])

A run is one `trainer.fit()`, without its sanity check. A step is one batch, of mode TRAIN, or EVAL for those
of a validation. Module outputs are captured wherever training_step or validation_step calls them, with
or without the LightningModule's own forward; what goes into backward() is "loss_output_0". A request to stop
sets `trainer.should_stop`. Checkpoints carry how far steps are counted, and `fit(ckpt_path=...)` goes on from
there. Adds nothing that Hook cannot do.

The trainer runs training_step inside the optimizer's step, as its closure, and no event of a callback falls
between the two. So a step begins in the strategy's training_step, which is wrapped while the training runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from tdcore.config.settings import disabled
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.pytorch.trainer_session import TrainerSession, manual_step, replace_attribute
from tdcore.modes import ModeKeys

__all__ = ["HookCallback"]


class HookCallback(Callback):  # type: ignore[misc]  # the library is not installed everywhere
    """Captures a Trainer's fit. Arguments: those of tdcore.hooks.pytorch.Hook."""

    def __init__(self, out_dir: str | os.PathLike[str], **options: Any) -> None:
        self._training = TrainerSession(out_dir, options)
        self._resumed: dict[str, Any] | None = None
        self._wrapped = ExitStack()

    @property
    def hook(self) -> Hook | None:
        """The hook, for scalars and tensors of the script's own; None before the training begins."""
        return self._training.hook

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Makes the hook, registers the module and its optimizers, and goes on where a checkpoint was."""
        self._wrapped.close()
        processes, resumed = trainer.world_size, self._resumed
        hook = self._training.begin(pl_module, trainer.optimizers, processes=processes, resumed=resumed)
        self._resumed = None
        if disabled():
            return
        for name, mode in (("training_step", ModeKeys.TRAIN), ("validation_step", ModeKeys.EVAL)):
            inner = getattr(trainer.strategy, name)
            replace_attribute(
                trainer.strategy, name, partial(_as_step, hook, pl_module, mode, inner), self._wrapped
            )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the epoch of the following steps."""
        if self._training.hook is not None:
            self._training.hook.set_epoch(trainer.current_epoch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        """Records the loss."""
        if self._training.hook is not None:
            self._training.hook.record_tensor_value("loss", loss)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop the trainer after a stop request."""
        if self._training.stop_requested:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Closes the hook."""
        self._wrapped.close()
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Closes the hook."""
        self.on_train_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint: how far steps are counted."""
        return self._training.hook.state_dict() if self._training.hook is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From the checkpoint, before the training begins."""
        self._resumed = state_dict


def _as_step(
    hook: Hook, module: Any, mode: ModeKeys, inner: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls the strategy's own method as one step of the hook."""
    with manual_step(hook, module, mode):  # the batch may never pass through the module's own forward
        return inner(*args, **kwargs)
