"""BlockDriver: the steps of the MXNet hook, and the times at which values are read.

Between saved steps, only the registered blocks have a forward pre-hook; the blocks inside have one too if a
block is trained by another method than forward. In a saved step, forward hooks are attached to all blocks
inside, and removed when the step ends. Threads: the training thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from mxnet import autograd

from tdcore.format.layout import TensorKind
from tdcore.hooks.base import BaseHook
from tdcore.hooks.clock import SuspendedStep
from tdcore.hooks.live_hooks import LIVE_HOOKS
from tdcore.hooks.mxnet.arrays import is_array, listed_arrays
from tdcore.hooks.mxnet.block_values import BlockValues
from tdcore.hooks.mxnet.trainer_updates import listen, unlisten
from tdcore.hooks.phase_signals import PhaseSignals, Signal, time_phases
from tdcore.hooks.plan import Plan
from tdcore.hooks.run_notes import note_once
from tdcore.hooks.step_timer import CHECKPOINT, COMPUTE, DATA
from tdcore.modes import ModeKeys

__all__ = ["BlockDriver"]

_TRAIN, _EVAL, _GLOBAL = ModeKeys.TRAIN.value, ModeKeys.EVAL.value, ModeKeys.GLOBAL.value
_TRAINING = (_TRAIN, _GLOBAL)
_SIGNALS = PhaseSignals(
    (
        Signal("mxnet.gluon.data.dataloader", "_MultiWorkerIter.__next__", DATA, is_epoch=True),
        Signal("mxnet.gluon.block", "Block.save_parameters", CHECKPOINT),
        Signal("mxnet.gluon.block", "HybridBlock.export", CHECKPOINT),
        Signal("mxnet.gluon.trainer", "Trainer.save_states", CHECKPOINT),
    )
)


class _RootPreHook:
    """Forward pre-hook that begins steps. It keeps the hook alive, so a script need not store the hook."""

    def __init__(self, driver: BlockDriver) -> None:
        self.driver = driver

    def __call__(self, block: Any, inputs: Any) -> None:
        self.driver._on_forward(inputs)


class _PartPreHook:
    """Forward pre-hook that begins training steps of a root whose own forward is not called."""

    def __init__(self, driver: BlockDriver) -> None:
        self._driver = weakref.ref(driver)

    def __call__(self, block: Any, inputs: Any) -> None:
        driver = self._driver()
        if driver is not None and autograd.is_training():
            driver._on_forward(inputs)


class BlockDriver(BaseHook):
    """The part of the MXNet hook that MXNet calls."""

    def _start_driver(self) -> None:
        self._read = BlockValues(self._recorder, self._clock.now)
        self._note = note_once(self._notes, self._warn)
        self._end_phases = time_phases(self, self._timer, self._recorder, _SIGNALS)
        self._roots: list[tuple[weakref.ref[Any], Any]] = []  # block, handle of its pre-hook
        self._parts: list[Any] = []  # handles of the pre-hooks of blocks inside, see _enter_by_parts()
        self._losses: list[weakref.ref[Any]] = []
        self._attached: list[Any] = []  # handles of the hooks of a saved step
        self._trains = False  # a training step has begun in this run
        self._updated = False  # the training step has had an update
        self._left: SuspendedStep | None = None  # the training step, while steps of other modes run
        self._weights_of = -1  # the step whose weights were read
        self._unread: list[Any] = []  # parameters without values before their first forward
        self._owned: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._trainers: list[weakref.ref[Any]] = []  # in the order of their first saved update

    def _add_root(self, block: Any) -> None:
        self._take_over(block)
        if any(reference() is block for reference, _ in self._roots):
            return
        self._roots.append((weakref.ref(block), block.register_forward_pre_hook(_RootPreHook(self))))
        self._owned = weakref.WeakKeyDictionary()
        listen(self)

    def _take_over(self, block: Any) -> None:
        """Close an earlier hook that captures this block, because a block has only one hook."""
        for other in list(LIVE_HOOKS):
            if other is self or not isinstance(other, BlockDriver) or other._off:
                continue
            if any(reference() is block for reference, _ in other._roots):
                other._notes["taken_over_by"] = self.out_dir
                self._warn(
                    f"a new hook captures {block.name} and writes to {self.out_dir}; the hook that wrote to "
                    f"{other.out_dir} is closed"
                )
                other.close()

    # Steps ------------------------------------------------------------------------------------------------

    def _on_forward(self, inputs: Any) -> None:
        """Handle the start of each forward of a registered block."""
        if self._off or "steps" in self._faults or not any(map(is_array, listed_arrays(inputs))):
            return  # closed, failed, or the block is being traced to a graph
        if self._control_changed():
            self._check_control_guarded()
        start = perf_counter_ns()
        try:
            plan = self._step_of_forward()
            if plan is not None:
                self._before_forward(plan)
        except Exception as error:
            self._fault("steps", error)
        if self._clock.plan is not None:
            self._recorder.spent_ns += perf_counter_ns() - start

    def _step_of_forward(self) -> Plan | None:
        """Begin the step of a forward, or continue the training step. Return its plan."""
        mode = self._mode or (_TRAIN if autograd.is_training() else _EVAL)
        trains = mode in _TRAINING
        if trains and self._trains and not self._updated:
            self._continue_row()
            self._continue_training()
            return self._clock.plan
        self._detach_step()
        if trains:
            self._left = None
            self._trains, self._updated = True, False
        elif self._trains and self._left is None:
            self._left = self._clock.leave()
        return self._begin_step(mode)

    def _continue_row(self) -> None:
        """Continue the row of the training step, which a wait or steps of other modes have interrupted."""
        if self._left is None:
            self._timer.enter(COMPUTE)
        else:
            step, mode, mode_step = self._left.step_id
            self._timer.begin(step, mode, mode_step, COMPUTE, self._recorder.spent_ns)

    def _continue_training(self) -> None:
        """Make the training step the current one again, after steps of other modes."""
        if self._left is not None:
            self._detach_step()
            self._clock.continue_step(self._left)
            self._left = None

    def _last_complete_step(self) -> int:
        left = self._left
        return self._clock.last if left is None or self._updated else left.step_id.step - 1

    def _before_forward(self, plan: Plan) -> None:
        """Read the weights once per step, and attach the hooks of the step."""
        roots = [root for reference, _ in self._roots if (root := reference()) is not None]
        step = self._clock.now.step
        if self._weights_of != step:
            self._weights_of = step
            # Roots may share parameters and blocks; a block may have one child under two names.
            shared = {id(each): each for root in roots for each in root.collect_params().values()}
            self._unread = self._read.parameters(shared.values(), plan)
            for root in roots:
                self._note_hybridized(root, plan)
        if self._attached:
            return
        blocks: dict[int, Any] = {}
        for root in roots:
            root.apply(lambda block: blocks.setdefault(id(block), block))
        for block in blocks.values():
            self._attach(block, "outputs", self._on_block)
        for known in self._losses:
            loss = known()
            if loss is not None:
                self._attach(loss, "losses", self._on_loss)

    def _attach(self, block: Any, part: str, call: Callable[..., None]) -> None:
        """Attach a forward hook that never raises an error into the training."""

        def guarded(block: Any, inputs: Any, outputs: Any) -> None:
            plan = None if self._off or part in self._faults else self._clock.plan
            if plan is None or not any(map(is_array, listed_arrays(outputs))):
                return
            start = perf_counter_ns()
            self._guarded(part, call, block, inputs, outputs, plan)
            self._recorder.spent_ns += perf_counter_ns() - start

        self._attached.append(block.register_forward_hook(guarded))

    def _on_block(self, block: Any, inputs: Any, outputs: Any, plan: Plan) -> None:
        self._read.of_block(block, TensorKind.INPUT, inputs, plan)
        self._read.of_block(block, TensorKind.OUTPUT, outputs, plan)
        if self._unread and any(reference() is block for reference, _ in self._roots):
            # Moving statistics have changed in this forward, so they are not read. Parameters of other
            # roots may have no values yet.
            unread = [each for each in self._unread if each.grad_req != "null"]
            self._unread = self._read.parameters(unread, plan)

    def _on_loss(self, block: Any, inputs: Any, outputs: Any, plan: Plan) -> None:
        self._read.loss(block, outputs, plan)

    def _note_hybridized(self, root: Any, plan: Plan) -> None:
        """Note that MXNet does not call the blocks inside a hybridized block one by one."""
        inside: list[Any] = []
        root.apply(lambda block: inside.append(block) if getattr(block, "_active", False) else None)
        if inside and (plan.may_take(TensorKind.OUTPUT) or plan.may_take(TensorKind.INPUT)):
            self._note(
                f"inputs and outputs of blocks inside {root.name} are not captured, because it is "
                "hybridized; call hybridize(False) to capture them"
            )

    # Updates ----------------------------------------------------------------------------------------------

    def before_update(self, trainer: Any) -> None:
        """Handle the start of an update, when gradients are final. Called by trainer_updates.py."""
        self._guarded("updates", self._before_update, trainer)

    def after_update(self, trainer: Any) -> None:
        """Handle the end of an update, when the weights have changed. Called by trainer_updates.py."""
        self._guarded("updates", self._after_update, trainer)

    def _before_update(self, trainer: Any) -> None:
        if self._off or "updates" in self._faults or not self._is_own(trainer):
            return
        if not self._trains:
            self._enter_by_parts()
            return
        if self._left is not None:
            self._continue_row()
        self._timer.begin_optimizer()
        self._continue_training()
        plan = self._clock.plan
        if plan is None:
            return
        start = perf_counter_ns()
        self._read.gradients(trainer._params, plan)
        self._read.learning_rate(trainer, self._number_of(trainer), plan)
        self._recorder.spent_ns += perf_counter_ns() - start

    def _enter_by_parts(self) -> None:
        """Let the blocks inside begin steps, after an update without a training forward of a root."""
        if self._parts:
            return
        for reference, _ in self._roots:
            root = reference()
            if root is None:
                continue
            self._note(
                f"the first step of {root.name} is not captured, because this block is trained by another "
                "method than forward. Its later steps begin when the first block inside is called"
            )
            pre_hook = _PartPreHook(self)
            root.apply(lambda block, call=pre_hook: self._parts.append(block.register_forward_pre_hook(call)))

    def _after_update(self, trainer: Any) -> None:
        if not self._off and self._trains and self._is_own(trainer):
            self._detach_step()
            self._updated = True
            self._timer.end_optimizer()

    def _is_own(self, trainer: Any) -> bool:
        """Whether the trainer has a parameter of a registered block."""
        own = self._owned.get(trainer)
        if own is None:
            roots = [root for reference, _ in self._roots if (root := reference()) is not None]
            known = {id(each) for root in roots for each in root.collect_params().values()}
            own = self._owned[trainer] = any(id(each) in known for each in trainer._params)
        return own

    def _number_of(self, trainer: Any) -> int:
        """Return the number of a trainer, from 0."""
        for number, known in enumerate(self._trainers):
            if known() is trainer:
                return number
        self._trainers.append(weakref.ref(trainer))
        return len(self._trainers) - 1

    # For the base class -----------------------------------------------------------------------------------

    def _switch_off(self, part: str) -> None:
        if part == "steps":
            self._detach_step()

    def _detach_step(self) -> None:
        """Remove the hooks of a saved step."""
        attached, self._attached, self._unread = self._attached, [], []
        for handle in attached:
            handle.detach()

    def _detach(self) -> None:
        self._guarded("updates", unlisten, self)
        self._guarded("hooks", self._detach_step)
        for handle in (*(handle for _, handle in self._roots), *self._parts):
            self._guarded("hooks", handle.detach)
        self._roots.clear()
        self._parts.clear()
