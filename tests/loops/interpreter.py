"""Executes a generated loop, with or without a hook, and reports its events to a reference recorder.

Threads: the training thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tdcore.modes import ModeKeys
from tests.loops.generator import CLOSURES, Loop
from tests.loops.modules import FEATURES, FROZEN, MSELoss, Root, listening, make_root
from tests.loops.reference import Reference
from tests.loops.updaters import Updater

__all__ = ["Outcome", "execute", "saves"]

_BATCH = 2
_SCALE = 256.0
Body = Callable[[], torch.Tensor]  # forward and loss; the caller runs the backward
Wrap = Callable[[Root], nn.Module]


@dataclass
class Outcome:
    """Result of a loop: losses in order, final weights by root and name, and the reference recorder."""

    losses: list[torch.Tensor]
    weights: dict[str, torch.Tensor]
    reference: Reference


def saves(loop: Loop) -> Callable[[str, int], bool]:
    """Return a function that computes whether a step is saved; independent of SaveConfigMode."""

    def saved(mode: str, mode_step: int) -> bool:
        if mode in ("EVAL", "PREDICT"):
            return mode_step % loop.eval_interval == 0
        return mode_step >= loop.start and mode_step % loop.interval == 0

    return saved


def execute(
    loop: Loop,
    hook: Any = None,
    *,
    wrap: Wrap | None = None,
    evaluates: bool = True,
    random_state: int = 0,
) -> Outcome:
    """Run the loop.

    Args:
        loop: The loop to run.
        hook: A tdcore Hook, or None.
        wrap: Puts a wrapper such as DistributedDataParallel around each root.
        evaluates: False skips evaluations, as in jobs where only rank 0 evaluates.
        random_state: Added to the seed of the data; each rank has its own data.
    """
    torch.manual_seed(loop.seed)
    run = _Run(loop, hook, wrap, evaluates, random_state)
    with listening(run.reference):
        run.train()
    for updater in run.updaters:
        updater.close()
    run.reference.finish()
    weights = {
        f"{at}.{name}": parameter.detach().clone()
        for at, root in enumerate(run.inner)
        for name, parameter in root.named_parameters()
    }
    return Outcome(run.losses, weights, run.reference)


class _Run:
    def __init__(self, loop: Loop, hook: Any, wrap: Wrap | None, evaluates: bool, random_state: int) -> None:
        self.loop = loop
        self.hook = hook
        self.losses: list[torch.Tensor] = []
        self.reference = Reference(saves(loop), loop.steps)
        self.inner = [make_root(kind) for kind in loop.roots]
        self.roots: list[Any] = [wrap(one) if wrap else one for one in self.inner]
        self.criterion = MSELoss()
        self.updaters: list[Updater] = []
        self.scaler: Any = None
        self._evaluates = evaluates
        self._random_state = random_state
        self._updates = 0
        self._window = 0
        self._late: torch.Tensor | None = None
        if not loop.early:
            self._make_updaters()
        self._register()
        if loop.early:
            self._make_updaters()
        if loop.scaler != "none":
            self.scaler = torch.amp.GradScaler("cpu", init_scale=_SCALE, growth_interval=2)
            self.reference.scaled = True

    def train(self) -> None:
        loop = self.loop
        self._set_training()
        if loop.set_mode in ("train", "global"):
            self._set_mode(loop.set_mode)
        if loop.evaluate == "start":
            self._evaluate()
        for window in range(loop.windows):
            self._window = window
            if loop.set_mode == "follow":
                self._set_mode("train")
            if loop.steps == "hand":
                self._begin_step()
            for updaters, bodies in self._turns():
                few = loop.warmup and window == 0
                self._turn(updaters, bodies[:1] if few else bodies)

    # Windows ----------------------------------------------------------------------------------------------

    def _turns(self) -> Iterator[tuple[list[Updater], list[Body]]]:
        loop = self.loop
        if loop.scheme == "gan":
            yield from self._gan()
        elif loop.scheme == "turns":
            for at in range(len(self.roots)):
                bodies = [self._one_root(at, number) for number in range(loop.accumulate)]
                yield [self._updater_of(at)], bodies
        else:
            yield self.updaters, [self._model(number) for number in range(loop.accumulate)]

    def _turn(self, updaters: list[Updater], bodies: list[Body]) -> None:
        loop = self.loop
        if loop.updater in CLOSURES:
            if loop.updater == "sam_closure":
                self._passes(updaters, bodies)
            for updater in updaters:
                updater.step_with_closure(lambda: self._passes(updaters, bodies))
        else:
            self._passes(updaters, bodies)
            if loop.updater == "sam":
                for updater in updaters:
                    updater.optimizer.first_step()  # type: ignore[union-attr]
                self._passes(updaters, bodies)
            self._update(updaters)
        if loop.zero == "after_step":
            self._clear(updaters)
        if loop.loss_late and self._late is not None:
            self._record_loss(self._late)
        self._updates += 1
        if loop.evaluate == "after" and self._updates % loop.every == 0:
            self._evaluate()

    def _passes(self, updaters: list[Updater], bodies: list[Body]) -> torch.Tensor:
        """Run all forwards and backwards of a turn."""
        loop = self.loop
        total = torch.zeros(())
        if loop.zero == "before_forward":
            self._clear(updaters)
        for number, body in enumerate(bodies):
            loss = body() / len(bodies)
            if loop.evaluate == "before_backward" and number == 0 and self._updates % loop.every == 0:
                self._evaluate()
            if loop.zero == "after_forward" and number == 0:
                self._clear(updaters)
            with self.reference.backward():
                (self.scaler.scale(loss) if self.scaler is not None else loss).backward()
            total = total + loss.detach()
            if loop.evaluate == "inside" and number < len(bodies) - 1:
                self._evaluate()
        if loop.updater in CLOSURES:
            self._clip(updaters)
        self.losses.append(total.detach().clone())
        return total

    def _update(self, updaters: list[Updater]) -> None:
        loop = self.loop
        if loop.scaler in ("unscale", "inf"):
            if loop.scaler == "inf" and self._window == 1:
                first = next(one for one in updaters[0].parameters if one.grad is not None)
                assert first.grad is not None
                first.grad.view(-1)[0] = math.inf
            for updater in updaters:
                self.scaler.unscale_(updater.optimizer)
        self._clip(updaters)
        for updater in updaters:
            for _ in range(2 if loop.twice else 1):
                updater.step(self.scaler)
        if self.scaler is not None:
            skipped = [
                one for updater in updaters if updater._found_inf(self.scaler) for one in updater.parameters
            ]
            self.scaler.update()
            self.reference.scaler_update(skipped)

    def _clip(self, updaters: list[Updater]) -> None:
        if self.loop.clip:
            for updater in updaters:
                nn.utils.clip_grad_norm_(updater.parameters, 0.1)

    def _clear(self, updaters: list[Updater]) -> None:
        for updater in updaters:
            updater.clear(self.loop.zero_how)

    # Forwards and losses ----------------------------------------------------------------------------------

    def _model(self, number: int) -> Body:
        """Run all roots, one after the other or in parallel."""
        loop = self.loop

        def body() -> torch.Tensor:
            inputs = [self._data(number, call) for call in range(loop.calls)]
            if loop.breadth or loop.scheme == "parallel":
                outputs = self._by_root(inputs)
            else:
                outputs = [self._chain(x) for x in inputs]
            losses = [self._loss(one, self._data(number, 10 + at)) for at, one in enumerate(outputs)]
            return torch.stack(losses).sum()

        return body

    def _by_root(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        values, outputs = list(inputs), []
        for at in range(len(self.roots)):
            if self.loop.scheme == "parallel":
                outputs += [self._call(at, x) for x in inputs]
            else:
                values = [self._link(at, x) for x in values]
        return outputs or values

    def _chain(self, x: torch.Tensor) -> torch.Tensor:
        for at in range(len(self.roots)):
            x = self._link(at, x)
        return x

    def _link(self, at: int, x: torch.Tensor) -> torch.Tensor:
        x = self._call(at, x)
        return x.detach() if self.loop.detach and at == 0 and len(self.roots) > 1 else x

    def _one_root(self, at: int, number: int) -> Body:
        return lambda: self._loss(self._call(at, self._data(number, at)), self._data(number, 10 + at))

    def _gan(self) -> Iterator[tuple[list[Updater], list[Body]]]:
        """Run a GAN as the DCGAN example does: critic on real data, critic on generated data, generator."""
        real, noise, target = self._data(0, 0), self._data(0, 1), self._data(0, 2)
        fakes: list[torch.Tensor] = []

        def on_real() -> torch.Tensor:
            return self._loss(self._call(1, real), target)

        def on_fake() -> torch.Tensor:
            fakes.append(self._call(0, noise))
            return self._loss(self._call(1, fakes[0].detach()), -target)

        def of_generator() -> torch.Tensor:
            fake = fakes[0] if fakes else self._call(0, noise)
            return self._loss(self._call(1, fake), target)

        yield [self._updater_of(1)], [on_real, on_fake]
        yield [self._updater_of(0)], [of_generator]

    def _call(self, at: int, x: torch.Tensor) -> torch.Tensor:
        root = self.roots[at]
        result: torch.Tensor = root.compute(x) if self.loop.method else root(x)
        return result

    def _loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.loop.loss == "criterion":
            loss: torch.Tensor = self.criterion(output, target)
            return loss
        loss = (output - target).square().mean()
        if self.loop.loss == "functional":
            if self.loop.loss_late:
                self._late = loss
            else:
                self._record_loss(loss)
        return loss

    def _record_loss(self, loss: torch.Tensor) -> None:
        if self.hook is not None:
            self.hook.record_tensor_value("mse_loss", loss)
        self.reference.loss("mse_loss_output_0", loss)

    def _data(self, *place: int) -> torch.Tensor:
        seed = self.loop.seed + 7919 * self._random_state
        for number in (self._window, *place):
            seed = seed * 31 + number + 1
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(_BATCH, FEATURES, generator=generator)

    # Evaluation -------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        loop = self.loop
        if not self._evaluates:
            return
        for root in self.roots:
            root.train(loop.how == "train_no_grad")
        if loop.set_mode == "follow":
            self._set_mode("eval")
        if loop.steps == "hand":
            self._begin_step()
        late, self._late = self._late, None
        grad_mode: Any = {"eval_grad": nullcontext, "eval_inference": torch.inference_mode}
        with grad_mode.get(loop.how, torch.no_grad)(), self._maybe_unwrapped():
            last = len(self.roots) - 1
            chosen = {"all": list(range(last + 1)), "first": [0], "last": [last]}[loop.evaluate_roots]
            for call in range(loop.evaluate_calls):
                x = self._data(20, call)
                for at in chosen:
                    x = self.roots[at](x)
                if loop.loss == "criterion":
                    self.criterion(x, self._data(21, call))
                elif loop.loss == "functional":
                    self._record_loss((x - self._data(21, call)).square().mean())
        self._late = late
        self._set_training()
        if loop.set_mode == "follow":
            self._set_mode("train")

    @contextmanager
    def _maybe_unwrapped(self) -> Iterator[None]:
        """Return the roots, without their wrappers if the seed of the loop is odd."""
        if self.loop.seed % 2 == 0:
            yield
            return
        roots, self.roots = self.roots, list(self.inner)
        try:
            yield
        finally:
            self.roots = roots

    # Set-up -----------------------------------------------------------------------------------------------

    def _register(self) -> None:
        for at in self.loop.register:
            if self.hook is not None:
                self.hook.register_module(self.roots[at])
            self.reference.register(self.inner[at])
        if self.loop.loss == "criterion":
            if self.hook is not None:
                self.hook.register_loss(self.criterion)
            self.reference.register_loss(self.criterion)

    def _make_updaters(self) -> None:
        loop = self.loop
        parts = [[at] for at in loop.owned] if loop.owner == "each" else [list(loop.owned)]
        if loop.updater == "none" or (loop.scheme in ("turns", "gan") and loop.owner == "one"):
            positions = [at for at, kind in enumerate(loop.roots) if kind != FROZEN]
            apart = loop.scheme in ("turns", "gan")
            parts = [[at] for at in positions] if apart else [positions]
        self._parts = parts
        for number, part in enumerate(parts):
            trained = [one for at in part for one in self.inner[at].parameters() if one.requires_grad]
            self.updaters.append(Updater(loop.updater, number, trained, self.reference))

    def _updater_of(self, at: int) -> Updater:
        return next(updater for updater, part in zip(self.updaters, self._parts, strict=True) if at in part)

    def _set_training(self) -> None:
        for root in self.roots:
            root.train(not self.loop.train_in_eval)

    def _set_mode(self, mode: str) -> None:
        if self.hook is not None:
            self.hook.set_mode(ModeKeys[mode.upper()])
        self.reference.set_mode(mode.upper())

    def _begin_step(self) -> None:
        if self.hook is not None:
            self.hook.step()
        self.reference.step()
