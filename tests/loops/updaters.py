"""Updates of the weights of a generated loop: torch optimizers, SAM, and hand-written updates.

An `Updater` belongs to one or several roots. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from tests.loops.reference import Reference

__all__ = ["Updater"]

_RATE = 0.05
Closure = Callable[[], torch.Tensor]


class Sam(Optimizer):
    """Sharpness-aware minimisation in its usual form: two passes around an inner SGD optimizer."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base = torch.optim.SGD(self.param_groups, lr=_RATE)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Move the weights along the gradient and clear the gradient."""
        for parameter in self._with_gradient():
            self.state[parameter]["before"] = parameter.data.clone()
            parameter.add_(parameter.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Restore the weights and step with the gradient of the second pass."""
        for parameter in self._with_gradient():
            if "before" in self.state[parameter]:
                parameter.data = self.state[parameter].pop("before")
        self.base.step()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Run both passes. The first backward has already run; closure runs the second one."""
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()

    def _with_gradient(self) -> list[Any]:
        return [one for group in self.param_groups for one in group["params"] if one.grad is not None]


class OwnOptimizer:
    """A class with the methods of an optimizer that does not derive from torch.optim.Optimizer."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters

    def step(self) -> None:
        """Apply plain gradient descent."""
        with torch.no_grad():
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=_RATE)


_TORCH: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "sgd": lambda these: torch.optim.SGD(these, lr=_RATE),
    "adam": lambda these: torch.optim.Adam(these, lr=_RATE, foreach=False),
    "adam_foreach": lambda these: torch.optim.Adam(these, lr=_RATE, foreach=True),
    "adam_fused": lambda these: torch.optim.Adam(these, lr=_RATE, fused=True),
    "adam_closure": lambda these: torch.optim.Adam(these, lr=_RATE),
    "lbfgs_1": lambda these: torch.optim.LBFGS(these, lr=0.1, max_iter=1),
    "lbfgs_4": lambda these: torch.optim.LBFGS(these, lr=0.1, max_iter=4),
    "sam": Sam,
    "sam_closure": Sam,
}


class Updater:
    """Updates these parameters as Loop.updater defines, and reports each update to the reference."""

    def __init__(self, kind: str, number: int, parameters: list[nn.Parameter], reference: Reference) -> None:
        self.parameters = parameters
        self.optimizer: Optimizer | None = None
        self._kind = kind
        self._number = number
        self._reference = reference
        self._own = OwnOptimizer(parameters)
        self._inside: list[Optimizer] = []
        self._handles: list[RemovableHandle] = []
        if kind in _TORCH:
            self.optimizer = _TORCH[kind](parameters)
            reference.optimizer(parameters)
        elif kind == "in_backward":
            for parameter in parameters:
                self._step_in_backward(parameter)
            reference.optimizer(parameters)

    def close(self) -> None:
        """Remove the hooks of updates inside of backward, which would keep the parameters alive."""
        for handle in self._handles:
            handle.remove()

    def clear(self, how: str) -> None:
        """Clear the gradients. how: as in Loop.zero_how."""
        if self.optimizer is not None and how in ("none", "zeros"):
            self.optimizer.zero_grad(set_to_none=how == "none")
            return
        cleared = [one for one in self.parameters if one.grad is not None]
        for parameter in cleared:
            if how in ("none", "by_hand_none"):
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
        self._reference.sign(cleared)

    def step(self, scaler: Any = None) -> None:
        """Update without a closure."""
        kind = self._kind
        if kind in ("in_backward", "none"):
            return
        if self.optimizer is None:
            self._step_by_hand()
            return
        optimizer: Any = self.optimizer.base if isinstance(self.optimizer, Sam) else self.optimizer
        before = self._gradients()
        finite = all(one is None or bool(torch.isfinite(one).all()) for one in before.values())
        if finite or scaler is None:
            self._reference.before_update(self.parameters)
        if isinstance(self.optimizer, Sam):
            self.optimizer.second_step()
        elif scaler is None:
            optimizer.step()
        else:
            scale = scaler.get_scale()
            unscaled = int(scaler._per_optimizer_states[id(optimizer)]["stage"].value) > 0
            scaler.step(optimizer)
            if kind == "adam_fused" and not unscaled:
                before = {key: None if one is None else one / scale for key, one in before.items()}
            else:
                before = self._gradients()  # step() has unscaled them in place
            if self._found_inf(scaler):
                return
        self._reference.update(self.parameters, before)

    def step_with_closure(self, closure: Closure) -> None:
        """Call optimizer.step(closure) once."""
        assert self.optimizer is not None

        def reported() -> torch.Tensor:
            loss = closure()
            self._reference.evaluated(self._number, self.parameters)
            return loss

        self.optimizer.step(reported)  # type: ignore[arg-type]
        self._reference.update(self.parameters, None)

    def _found_inf(self, scaler: Any) -> bool:
        found = scaler._per_optimizer_states[id(self.optimizer)]["found_inf_per_device"]
        return any(bool(one.item()) for one in found.values())

    def _gradients(self) -> dict[int, torch.Tensor | None]:
        return {id(one): None if one.grad is None else one.grad.detach().clone() for one in self.parameters}

    def _step_by_hand(self) -> None:
        if self._kind == "own_class":
            self._own.step()
        else:
            for parameter in self.parameters:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if self._kind == "hand_data_add":
                    parameter.data.add_(gradient, alpha=-_RATE)
                elif self._kind == "hand_data_set":
                    parameter.data = parameter.data - _RATE * gradient
                else:
                    weight: Any = parameter
                    with torch.no_grad():
                        weight -= _RATE * gradient
        self._reference.sign([one for one in self.parameters if one.grad is not None])

    def _step_in_backward(self, parameter: nn.Parameter) -> None:
        optimizer = torch.optim.SGD([parameter], lr=_RATE)
        self._inside.append(optimizer)

        def step(ready: torch.Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None
            used = {id(parameter): gradient.detach().clone()}
            self._reference.before_update([parameter])
            optimizer.step()
            self._reference.update([parameter], dict(used))
            optimizer.zero_grad()

        self._handles.append(parameter.register_post_accumulate_grad_hook(step))
