"""TrainerSession: the hook of one training, shared by the callbacks for trainers of other libraries.

A TrainerSession creates the hook when the training begins, registers the model and its optimizers, keeps a
stop request until the trainer can be stopped, and closes the hook at the end. Threads: the training thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from tdcore.hooks.pytorch import Hook
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.session import StopRequest

__all__ = ["TrainerSession", "manual_step", "replace_attribute"]


class TrainerSession:
    """The hook of one training.

    Attributes:
        out_dir, options: Arguments of Hook.
        hook: Hook of the running training, or of the last training.
    """

    def __init__(self, out_dir: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
        self._out_dir = out_dir
        self._options = dict(options)
        self.hook: Hook | None = None
        self.stop_requested = False

    def begin(
        self,
        model: nn.Module,
        optimizers: Iterable[object],
        *,
        processes: int,
        resumed: Mapping[str, Any] | None,
    ) -> Hook:
        """Create the hook at the start of the training.

        A single process stops when its trainer stops. In a job with several processes, the other processes
        would wait forever for a process whose trainer stops. In such a job StopTraining is raised: the
        process ends, and the launcher ends the job.

        Args:
            model: The model.
            optimizers: The optimizers of the model.
            processes: Number of processes of the job.
            resumed: Hook.state_dict() of the checkpoint, if any.
        """
        self.end()
        self.stop_requested = False
        mine = {"on_stop": self._on_stop} if processes == 1 else {}
        hook = Hook(self._out_dir, **{**self._options, **mine})
        try:
            hook.register_module(model)
            for optimizer in optimizers:
                if isinstance(optimizer, Optimizer):
                    hook.register_optimizer(optimizer)
            if resumed:
                hook.load_state_dict(resumed)
        except BaseException:
            hook.close()
            raise
        self.hook = hook
        return hook

    def end(self) -> None:
        """Close the hook at the end of the training, also after an error. A second call has no effect."""
        if self.hook is not None:
            self.hook.close()

    def _on_stop(self, request: StopRequest) -> None:
        self.stop_requested = True
        on_stop = self._options.get("on_stop")
        if on_stop is not None:
            on_stop(request)


@contextmanager
def manual_step(hook: Hook, module: nn.Module, mode: ModeKeys) -> Iterator[None]:
    """Context of a step that a trainer begins and ends. The module's own forward may not be called in it."""
    hook.set_mode(mode)
    hook.step()
    hook._enter_step(module)
    try:
        yield
    finally:
        hook._leave_step()


def replace_attribute(owner: Any, name: str, value: object, undo: ExitStack) -> None:
    """Replace an attribute of one object until `undo` is closed."""
    own = vars(owner)
    if name in own:
        undo.callback(setattr, owner, name, own[name])
    else:
        undo.callback(own.pop, name, None)
    setattr(owner, name, value)
