"""HookCallback: the hook as a callback of Lightning's Trainer.

    from tdcore.hooks.lightning import HookCallback

    trainer = Trainer(callbacks=[HookCallback("runs/demo", save_all=True)])

A run is one `trainer.fit()`, without its sanity check. A step is one batch. Its mode is TRAIN, or EVAL for
validation batches. Module outputs are captured when training_step or validation_step calls the modules,
with or without the LightningModule's own forward. The value that is passed to backward() is "loss_output_0".
A request to stop sets `trainer.should_stop`. Checkpoints contain the step numbers, and `fit(ckpt_path=...)`
continues them. All functions of the callback are also available through Hook.

The trainer runs training_step inside the optimizer's step, as its closure, and there is no callback event
between the two. Therefore steps begin in the strategy's training_step, which is wrapped during the training.
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
    """Callback that captures one `trainer.fit()`.

    Args:
        out_dir: Local folder or URL of the run.
        options: Further arguments of tdcore.hooks.pytorch.Hook.
    """

    def __init__(self, out_dir: str | os.PathLike[str], **options: Any) -> None:
        self._training = TrainerSession(out_dir, options)
        self._resumed: dict[str, Any] | None = None
        self._wrapped = ExitStack()

    @property
    def hook(self) -> Hook | None:
        """The hook, to record scalars and tensors of the script; None before the training begins."""
        return self._training.hook

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Create the hook, register the module and its optimizers, and continue the checkpoint's steps."""
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
        """Record the loss."""
        if self._training.hook is not None:
            self._training.hook.record_tensor_value("loss", loss)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop the trainer after a stop request."""
        if self._training.stop_requested:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the hook."""
        self._wrapped.close()
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the hook."""
        self.on_train_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Step numbers for the checkpoint."""
        return self._training.hook.state_dict() if self._training.hook is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the step numbers of a checkpoint, before the training begins."""
        self._resumed = state_dict


def _as_step(
    hook: Hook, module: Any, mode: ModeKeys, inner: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call the strategy's own method as one step of the hook."""
    with manual_step(hook, module, mode):  # the module's own forward may not be called
        return inner(*args, **kwargs)
