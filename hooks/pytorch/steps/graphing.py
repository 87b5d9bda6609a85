"""Recording of registered modules into CUDA graphs by torch.cuda.make_graphed_callables().

make_graphed_callables() refuses a module that has hooks, calls it some times as a warm-up, records its
forward and its backward, and replaces its `forward`. The replays call no hooks of the modules inside.
`with hook.graphing():` removes the hooks of the modules that are recorded. Their `forward` is replaced by
RecordedForward, which attaches hooks to the modules inside while a graph is recorded, so that the graph
computes their statistics (graphs.py). The warm-up is not captured, and begins no step.

Threads: the training thread; gradients are recorded in threads of autograd.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from tdcore.hooks.devices import prepare_devices
from tdcore.hooks.pytorch.model.model_view import cuda_devices
from tdcore.hooks.pytorch.model.wrappers import wrapped_modules
from tdcore.hooks.pytorch.steps import compiled_steps, graphs
from tdcore.hooks.pytorch.steps.step_hooks import ForwardPreHook

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.steps.driver import TrainingDriver
    from tdcore.hooks.pytorch.steps.root import Root

__all__ = ["graphing"]


@contextmanager
def graphing(hook: TrainingDriver, given: Sequence[Callable[..., Any]]) -> Iterator[None]:
    """Let make_graphed_callables() record modules. given: Its callables; empty: all registered modules."""
    roots = [root for root in hook._roots if root.reference() is not None]
    recorded = [one for one in given if isinstance(one, nn.Module)]  # functions have no hooks
    if not given:
        recorded = [module for root in roots for module in _with_wrapped(root)]
    hook._has_graphs = hook._has_graphs or graphs.uses_cuda()
    now = hook._clock.now
    with ExitStack() as stack:
        for root in roots:
            hook._guarded("activations", root.rest)
            if root.compiled.root_is_compiled:  # hooks are attached for its next forward
                hook._guarded("activations", root.module_hooks.detach)
                stack.callback(_arm, hook, root)
            stack.enter_context(root.entries.taken_off())
            stack.enter_context(root.module_hooks.recording())
        for module in recorded:
            hook._guarded(
                "devices", prepare_devices, hook._ring, cuda_devices(module.parameters()), hook._warn
            )
            stack.callback(_put_back, hook, module, _take_off(module))
            stack.callback(RecordedForward(hook, roots, module).end)
        calls, now.calls = now.calls, defaultdict(int)  # the calls of a step, as in the replays
        try:
            yield
        finally:
            now.calls = calls


def _arm(hook: TrainingDriver, root: Root) -> None:
    if not hook._off:
        hook._guarded("activations", compiled_steps.arm, hook, root)


def _with_wrapped(root: Root) -> list[nn.Module]:
    module = root.reference()
    return [] if module is None else [module, *wrapped_modules(module)]


def _take_off(module: nn.Module) -> dict[int, ForwardPreHook]:
    """Remove the pre-hooks of roots from a module. Return them."""
    found = {key: one for key, one in module._forward_pre_hooks.items() if isinstance(one, ForwardPreHook)}
    for key in found:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
    return found


def _put_back(hook: TrainingDriver, module: nn.Module, found: dict[int, ForwardPreHook]) -> None:
    if hook._off:
        return  # the hook was closed in the meantime
    flags: Any = module._forward_pre_hooks_with_kwargs
    for key, one in found.items():
        module._forward_pre_hooks[key] = flags[key] = one


class RecordedForward:
    """The forward of a module while make_graphed_callables() runs. Later it calls the original forward."""

    def __init__(self, hook: TrainingDriver, roots: list[Root], module: nn.Module) -> None:
        self._own = vars(module).get("forward")  # None: the method of the class
        self._forward: Callable[..., Any] = module.forward
        self._hook: TrainingDriver | None = hook
        self._roots = roots
        self._module: nn.Module | None = module
        # In nested contexts the forward is a RecordedForward, whose attributes must not replace these.
        functools.update_wrapper(self, self._forward, updated=())
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original forward, with hooks on the modules inside if a graph is recorded."""
        hook = self._hook
        if hook is None or hook._off or not graphs.records_graph():
            return self._forward(*args, **kwargs)
        for root in self._roots:
            hook._guarded("activations", root.begin_recording, hook)
        try:
            return self._forward(*args, **kwargs)
        finally:
            for root in self._roots:
                hook._guarded("activations", root.module_hooks.recording_ended)

    def end(self) -> None:
        """Stop recording. Restore the forward of a module that has not been graphed."""
        module, self._module, self._hook, self._roots = self._module, None, None, []
        if module is None or vars(module).get("forward") is not self:
            return  # graphed: the new forward calls this object in the other training mode
        if self._own is None:
            del module.forward
        else:
            module.forward = self._own
