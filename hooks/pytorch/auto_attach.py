"""Automatic attachment: search for a script's model, optimizers and losses under `tdcore run`.

The root is the first module that is called outside of another module's forward, with gradients enabled, and
whose parameters an optimizer holds. Wrappers such as DistributedDataParallel and torch.compile are unwrapped.
The roots of other optimizers (a GAN has several) are then searched among all modules. If the calls of a root
cannot be observed (a compiled training step), the root is found at its optimizer's first step, so its first
step is missed. While the process has no torch.optim optimizer, a module in training mode that a backward has
reached becomes the root at its next call, so its first step is missed too.

The loss is the tensor on which the script calls backward(), before the scaling of a GradScaler. Its name is
"loss_output_0".

A `MethodProbe` replaces one method of a class and reports the object on which the method is looked up. The
look-up then returns the method itself, so no function of tdcore is on the stack while the method runs, and
tracebacks, warnings, signatures and compiled code do not change. One probe is on nn.Module.__call__ until the
root is found, and one is on Tensor.backward until the end. Threads: any. Never raises into the script; keeps
no model, tensor or hook alive.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType, MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tdcore.errors import ConfigError
from tdcore.hooks.live_hooks import LIVE_HOOKS
from tdcore.hooks.pytorch.compile.tracing import graph_task
from tdcore.hooks.pytorch.hook import Hook
from tdcore.hooks.pytorch.model.introspection import live_instances
from tdcore.hooks.pytorch.model.wrappers import module_to_register
from tdcore.hooks.pytorch.parameters.grad_scaler import GRAD_SCALER
from tdcore.hooks.pytorch.parameters.optimizers import owned_by
from tdcore.hooks.pytorch.steps.step_hooks import ClosureWrapper

__all__ = ["Attachment", "MethodProbe"]

_SEARCHES = 16  # number of first calls that search for optimizers; later each 2^n-th call searches
_BACKWARDS = 16  # number of backwards whose graph is searched, if the script has no optimizer
_CALL_CODE = getattr(getattr(nn.Module, "_call_impl", None), "__code__", None)


class MethodProbe:
    """Descriptor that replaces a method of a class and reports each object on which it is looked up.

    The look-up returns the original method. A look-up on the class itself is not reported.
    """

    def __init__(self, owner: type, name: str, on_lookup: Callable[[Any], None]) -> None:
        self._owner = owner
        self._name = name
        self._method: Any = getattr(owner, name)
        self._on_lookup = on_lookup
        setattr(owner, name, self)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self._method
        self._on_lookup(instance)
        return MethodType(self._method, instance)

    def close(self) -> None:
        """Restore the method, unless other code has replaced it."""
        if self._owner.__dict__.get(self._name) is self:
            setattr(self._owner, self._name, self._method)


class FirstClosureWrapper(ClosureWrapper):
    """Wrapper of a closure until a training is found: the closure's forward may be the first forward."""

    def __init__(
        self, attachment: Attachment, optimizer: weakref.ref[Optimizer], closure: Callable[..., Any]
    ) -> None:
        super().__init__(attachment.hook, optimizer, closure)
        self._attachment = attachment

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the closure."""
        self._attachment.inside = self._optimizer
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._attachment.inside = None


class Attachment:
    """Search for a training, to which one hook is attached.

    Args:
        make_hook: Function that creates the hook; may raise.
        inform: Function that prints a line for the user about an action.
        warn: Function that prints a line for the user about a failure.
    """

    def __init__(
        self, make_hook: Callable[[], Hook], inform: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        self.found = False  # a training was found, even if it could not be recorded
        self.inside: weakref.ref[Optimizer] | None = None  # the optimizer whose closure runs
        self._make_hook = make_hook
        self._inform = inform
        self._warn = warn
        self._lock = threading.Lock()
        self._calls = 0
        self._stepped: list[weakref.ref[Optimizer]] = []
        self._scalers: list[weakref.ref[Any]] = []
        self._not_called: list[weakref.ref[nn.Module]] = []  # roots of an optimizer that has stepped
        # Only while there is no optimizer: parameters of called modules, by id, and parameters that a
        # backward reached.
        self._uncertain: dict[int, weakref.ref[nn.Parameter]] = {}
        self._reached: dict[int, weakref.ref[nn.Parameter]] = {}
        self._backwards = 0  # number of backwards whose graph was searched
        self._has_optimizers = False  # the process has had an optimizer
        self._hook: weakref.ref[Hook] | Callable[[], None] = lambda: None
        self._call = MethodProbe(nn.Module, "__call__", self._on_call)
        self._backward = MethodProbe(torch.Tensor, "backward", self._on_backward)
        self._step = register_optimizer_step_pre_hook(self._on_step)
        os.register_at_fork(after_in_child=self.close)

    def close(self) -> None:
        """Remove all probes and stop the search. A hook that was created is not closed."""
        self.found = True
        self._hook = lambda: None
        self._call.close()
        self._backward.close()
        self._step.remove()

    def hook(self) -> Hook | None:
        """The created hook, while it exists."""
        return self._hook()

    # Called by PyTorch ------------------------------------------------------------------------------------

    def _on_call(self, module: nn.Module) -> None:
        """Handle a call of a module, before it begins, or a read of its __call__."""
        try:
            if not self.found and torch.is_grad_enabled() and _at_top(sys._getframe(2)):
                self._check_root(module)
        except Exception as error:
            self._stop_after_error(error)

    def _on_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle an optimizer's step, before it begins, while no root is found. The step may reveal the root.

        Torch iterates over the hooks of optimizers during this call, so hooks are added or removed at the
        next backward.
        """
        try:
            if self.found:
                return None
            again = any(known() is optimizer for known in self._stepped)
            self._stepped.append(weakref.ref(optimizer))
            has_closure = any(map(callable, (*args[1:], *kwargs.values())))
            if again or not has_closure:  # when the next backward starts, the optimizer has made a full step
                own = {id(one) for one in owned_by(optimizer)}
                held = {id(one) for other in live_instances(Optimizer) for one in owned_by(other)}
                roots = _roots_of(own)
                if roots:
                    roots += _roots_of(held - own, known_root=roots[0])
                self._not_called = list(map(weakref.ref, {id(root): root for root in roots}.values()))
            if not has_closure:
                return None
            wrap = partial(FirstClosureWrapper, self, weakref.ref(optimizer))
            rest = [wrap(value) if callable(value) else value for value in args[1:]]
            return (args[0], *rest), {key: wrap(one) if callable(one) else one for key, one in kwargs.items()}
        except Exception as error:
            self._stop_after_error(error, inside_step=True)
        return None

    def _on_backward(self, root: torch.Tensor) -> None:
        """Handle a backward, before it starts at this tensor."""
        hook = self._hook()
        if self._not_called and not self.found:
            self._attach_not_called()
        if not self.found and self._uncertain and self._backwards < _BACKWARDS and not self._has_optimizers:
            self._search_graph(root)
        if hook is None or hook._off or not hook._saves_losses:
            return
        try:
            inside = graph_task is not None and graph_task() != -1
            if not inside and root.requires_grad and root.numel() == 1:
                hook.record_tensor_value("loss", _unscaled(root, self._scalers))
        except Exception as error:
            self._hook = lambda: None
            hook._fault("the loss", error)

    # Search for the root ----------------------------------------------------------------------------------

    def _check_root(self, module: nn.Module) -> None:
        parameters = {id(one) for one in module.parameters() if one.requires_grad}
        if not parameters:
            return
        self._calls += 1
        optimizers = [known for known in (one() for one in self._stepped) if known is not None]
        due = self._calls <= _SEARCHES or self._calls & (self._calls - 1) == 0
        if not optimizers and due:
            optimizers = live_instances(Optimizer)
        held = {id(one) for optimizer in optimizers for one in owned_by(optimizer)}
        if parameters.isdisjoint(held):
            if optimizers:
                self._has_optimizers = True
            held = self._reached_by_backward(module)
            if parameters.isdisjoint(held):
                return
        root = module_to_register(module)
        others = held - {id(one) for one in root.parameters()}
        self._attach([root, *_roots_of(others, known_root=root)])

    def _reached_by_backward(self, module: nn.Module) -> set[int]:
        """Store the module's parameters. Return the ids that a backward without an optimizer has reached."""
        if self._has_optimizers or not module.training:
            return set()
        own = {id(one): weakref.ref(one) for one in module.parameters() if one.requires_grad}
        reached = {key for key, known in self._reached.items() if known() is not None}
        if reached.isdisjoint(own):
            self._uncertain.update(own)
        elif live_instances(Optimizer):
            self._has_optimizers = True
            return set()
        return reached

    def _search_graph(self, root: torch.Tensor) -> None:
        """Store the parameters that a starting backward reaches, while no optimizer is known."""
        try:
            self._backwards += 1
            if root.grad_fn is not None:
                leaf_ids = _leaves_of(root.grad_fn)
                self._reached.update((key, one) for key, one in self._uncertain.items() if key in leaf_ids)
        except Exception as error:
            self._stop_after_error(error)

    def _attach_not_called(self) -> None:
        """Attach a model whose optimizer has stepped without an observed call of the model."""
        try:
            roots = [root for root in (known() for known in self._not_called) if root is not None]
            self._not_called = []
            if roots:
                self._attach(roots)
        except Exception as error:
            self._stop_after_error(error)

    def _attach(self, roots: list[nn.Module]) -> None:
        with self._lock:
            if self.found:
                return
            self.found = True
        self._call.close()
        self._step.remove()
        own = [hook for hook in list(LIVE_HOOKS) if not hook._off]
        without_module = [hook for hook in own if isinstance(hook, Hook) and not hook._roots]
        if own and not without_module:
            self._inform("the script has its own hook, so `tdcore run` adds none")
            self.close()
            return
        hook = without_module[0] if without_module else self._make_hook()
        try:
            self._register(hook, roots)
        except BaseException:
            hook.close()
            raise
        if self.inside is not None:
            hook._inside, hook._attentive = self.inside, True
        self._scalers = [weakref.ref(scaler) for scaler in live_instances(GRAD_SCALER)]
        self._hook = weakref.ref(hook)

    def _register(self, hook: Hook, roots: list[nn.Module]) -> None:
        first, *others = roots
        hook.register_module(first)
        names = [type(first).__name__]
        for root in others:
            if self._joins(hook, root):
                names.append(type(root).__name__)
            else:
                self._warn(f"{type(root).__name__} also trains, but is not recorded")
        if not hook._off:
            self._continue_steps(hook, first)
            attempt = hook._session.attempt if hook._session is not None else 0
            again = f" (attempt {attempt}; earlier attempts are kept)" if attempt else ""
            self._inform(f"recording {', '.join(names)} to {hook.out_dir}{again}")

    def _continue_steps(self, hook: Hook, root: nn.Module) -> None:
        """Continue the step numbers if the trainer of transformers has resumed from a checkpoint."""
        if "transformers.trainer" not in sys.modules:
            return
        try:
            from tdcore.hooks.transformers import continue_steps

            message = continue_steps(hook, root)
        except Exception as error:
            message = (
                f"step numbers of the Trainer's checkpoint cannot be read: {type(error).__name__}: {error}"
            )
        if message is not None:
            hook._notes["not_resumed"] = message
            self._warn(message)

    @staticmethod
    def _joins(hook: Hook, root: nn.Module) -> bool:
        try:
            hook.register_module(root)
        except ConfigError:
            return False
        return True

    def _stop_after_error(self, error: Exception, *, inside_step: bool = False) -> None:
        """Stop after an error of tdcore; the script continues. inside_step: hooks of optimizers stay."""
        self.found = True
        self._warn(f"nothing is recorded: {error}; the script goes on")
        if not inside_step:
            self.close()


def _at_top(frame: FrameType | None) -> bool:
    """Whether the script makes the call, and neither another module's forward nor torch.compile's tracer."""
    if frame is not None and frame.f_code.co_name != "__call__" and _of_compiler(frame):
        return False
    if graph_task is not None and graph_task() != -1:
        return False  # activation checkpointing recomputes a module
    while frame is not None:
        if frame.f_code is _CALL_CODE:
            return False
        frame = frame.f_back
    return True


def _of_compiler(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith("torch._dynamo")


def _leaves_of(node: Any) -> set[int]:
    """Ids of the leaf tensors that a backward from this node of the graph reaches."""
    found: set[int] = set()
    seen, stack = {node}, [node]
    while stack:
        node = stack.pop()
        found.add(id(getattr(node, "variable", None)))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found


def _roots_of(held: set[int], known_root: nn.Module | None = None) -> list[nn.Module]:
    """The outermost modules that can be called and hold a parameter.

    Args:
        held: Ids of the parameters.
        known_root: A root that is already known. A module that contains it is not a root.
    """
    if not held:
        return []
    modules = live_instances(nn.Module)
    holding = [
        module
        for module in modules
        if type(module).forward is not nn.Module.forward
        and any(id(one) in held for one in module.parameters())
        and not any(one is known_root for one in module.modules())
    ]
    inner = {id(child) for module in holding for child in module.modules() if child is not module}
    tops = (module_to_register(module) for module in holding if id(module) not in inner)
    return list({id(top): top for top in tops}.values())


def _unscaled(root: torch.Tensor, scalers: Iterable[weakref.ref[Any]]) -> torch.Tensor:
    """The loss as the script computed it, before GradScaler.scale() multiplied it by a power of two.

    Values that autograd has saved are read only if a scaler has scaled a tensor, because with activation
    checkpointing reading them recomputes the forward.
    """
    known = (getattr(reference(), "_scale", None) for reference in scalers)
    scales = [scale for scale in known if isinstance(scale, torch.Tensor)]
    if not scales or root.grad_fn is None or root.grad_fn.name() != "MulBackward0":
        return root
    factor = getattr(root.grad_fn, "_saved_other", None)
    if isinstance(factor, torch.Tensor) and factor.numel() == 1:
        for scale in scales:
            if scale.data_ptr() == factor.data_ptr():
                with torch.no_grad():
                    return root.detach() / scale
    return root
