"""Root: one registered module, with the parts that capture its weights, gradients and outputs.

Any number of modules may be registered, in any order; all take part in the same steps (driver.py).

    first root      names without a prefix: conv1_output_0, Generator_conv1.weight
    further roots   names with a prefix: Critic.conv1_output_0, Critic_conv1.weight, Critic_output_0 for the
                    root itself; a second root of the same class is named Critic_1, and so on, in order of
                    registration

Threads: the training thread. Keeps no model alive; a root is deleted with its model or with the hook.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torch import nn

from tdcore.hooks.clock import StepId
from tdcore.hooks.devices import prepare_devices
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.compile.code_variants import CompiledRoot, compile_in_use
from tdcore.hooks.pytorch.compile.forward_marks import wrap_forward
from tdcore.hooks.pytorch.forward.entries import Entries
from tdcore.hooks.pytorch.forward.hook_attachment import Arguments, ModuleHooks
from tdcore.hooks.pytorch.model.eval_modules import EvalModules
from tdcore.hooks.pytorch.model.model_view import ModelView, cuda_devices
from tdcore.hooks.pytorch.model.wrappers import class_name, innermost, wrapped_modules
from tdcore.hooks.pytorch.parameters.gradient_order import BackwardSentinel
from tdcore.hooks.pytorch.parameters.parameter_capture import ParameterCapture
from tdcore.hooks.pytorch.parameters.update_signs import UpdateSigns
from tdcore.hooks.pytorch.steps.compiled_steps import note_missed, widest
from tdcore.hooks.pytorch.steps.step_hooks import ForwardPreHook

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.steps.driver import TrainingDriver
    from tdcore.hooks.pytorch.steps.step_transitions import StepTransitions

__all__ = ["Root", "root_name"]

_NEVER: set[int] = set()


class Root:
    """One registered module.

    Attributes:
        name: The name of the module in tensor names, if it is not the name of its class (a further root).
        compiled: State of the root's call in compiled code.
        trained_in: `_updates` (driver_state.py) of the training step with the last training forward.
        evaluated_after: Value of trained_in at the last forward in eval mode with gradients enabled.
        trains_in_eval: Whether an optimizer stepped after a forward in eval mode with gradients enabled, so
            that these forwards are training forwards.
        unseen: Whether an optimizer stepped without an observed forward.
        by_itself: Whether the module is trained by its own forward.
        follows: by_itself, and steps and modes follow the forwards.
        inner_expected: The forward of a wrapper runs and has not reached the module inside yet (has_inner).
        searched: Whether all objects were searched for optimizers of the module.
    """

    def __init__(
        self, hook: TrainingDriver, module: nn.Module, name: str | None, compiled: CompiledRoot
    ) -> None:
        self.reference = weakref.ref(module)
        self.compiled = compiled
        self.trains_in_eval = False
        self.trained_in: set[int] | None = None
        self.evaluated_after: set[int] | None = _NEVER
        self.unseen = False
        self.inner_expected = False
        self._inner = list(map(weakref.ref, wrapped_modules(module)))
        self.has_inner = bool(self._inner)
        self.searched = False
        self.follows = self.by_itself = False
        self._hook = weakref.ref(hook)
        self.parameters = ParameterCapture(
            module,
            hook._recorder,
            hook._notes,
            hook._warn,
            weakref.WeakMethod(hook._fault),
            name=name,
            numbering=hook._numbering,
            scalers=hook._scalers,
        )
        self.module_hooks = ModuleHooks(
            hook._recorder,
            weakref.WeakMethod(hook._fault),
            weakref.WeakMethod(self._end_forward),
            hook._warn,
            hook._notes,
            compiled,
        )
        self.entries = Entries(hook, self)
        self._eval_modules = EvalModules(hook._notes)
        self.sentinel = BackwardSentinel(weakref.WeakMethod(hook._fault))
        self.signs = UpdateSigns()
        # The last saved step with a forward of the module, and whether it is a training step.
        self._last_step: tuple[StepId, bool] | None = None

    def put_on(self, hook: TrainingDriver, stack: ExitStack) -> None:
        """Attach the pre-hooks. stack: The functions that remove them are added to this stack."""
        module = self.reference()
        if module is None:
            return
        for each in (module, *wrapped_modules(module)):  # a script may call the module inside a wrapper
            signal = ForwardPreHook(hook, self)
            handle = each.register_forward_pre_hook(signal, with_kwargs=True)
            stack.callback(handle.remove)
            flags: Any = each._forward_pre_hooks_with_kwargs
            flags[handle.id] = signal  # torch reads the keys only; pickles leave this value out (pickling.py)
        if compile_in_use():
            stack.callback(wrap_forward(module))
            hook._guarded("activations", self.arm, hook)
        else:
            self.entries.put_on()
        devices = cuda_devices(self.parameters.held() or [])
        hook._guarded("devices", prepare_devices, hook._ring, devices, hook._warn)

    def is_inner(self, module: nn.Module) -> bool:
        """Whether the module is inside the root, which is a wrapper."""
        return any(inner() is module for inner in self._inner)

    @property
    def has_no_training_forward(self) -> bool:
        """Whether no training forward of the root was observed since its optimizer stepped."""
        updates = self.trained_in
        return updates is None or any(id(one) in updates for _, one in self.parameters.optimizers.alive())

    @property
    def evaluated_with_grad(self) -> bool:
        """Whether the root ran in eval mode with gradients enabled, without a training forward since."""
        return self.evaluated_after is self.trained_in

    def learn_eval(self) -> None:
        """Treat further forwards of the root in eval mode with gradients enabled as training forwards."""
        self.trains_in_eval, self.evaluated_after = True, _NEVER
        self._eval_modules.look_at_root(self.view, training=False)

    @property
    def view(self) -> ModelView:
        """Names of the root's tensors."""
        return self.parameters.view

    # Steps ------------------------------------------------------------------------------------------------

    def join(
        self,
        hook: StepTransitions,
        module: nn.Module,
        plan: Plan,
        args: tuple[object, ...] | None,
        kwargs: Mapping[str, object] | None,
        *,
        trains: bool,
    ) -> None:
        """Handle the start of a forward in a saved step. Arguments as for TrainingDriver._on_forward()."""
        root, step_id = self.reference(), hook._clock.now.step_id
        if root is None:
            return
        compiled = args is not None and kwargs is None
        if module is root:
            self.compiled.root_is_compiled = compiled
        if self._last_step != (step_id, trains):
            self._last_step = step_id, trains
            try:
                self._begin_forward(hook, root, step_id, plan, trains)
            except Exception as error:
                hook._fault("parameters", error)
        own = (args, kwargs) if args is not None and kwargs is not None else None
        if self.module_hooks.step == step_id and not compiled:
            if own is not None:
                if self.has_inner:
                    self.module_hooks.attach_inner(module if module is not root else None)
                self.module_hooks.begin_call(module, own)
            return
        try:
            self._attach(hook, root, plan, own, step_id, compiled)
            if own is not None and module is not root:
                self.module_hooks.attach_inner(module)
        except Exception as error:
            hook._fault("activations", error)

    def _begin_forward(
        self, hook: StepTransitions, root: nn.Module, step_id: StepId, plan: Plan, trains: bool
    ) -> None:
        if not trains or hook._begun_by is not self:  # otherwise the model was checked when the step began
            self.parameters.current_view()
        if hook._rank_and_size[1] > 1:
            hook._local_shards.look_at(root, self.view)
        self.parameters.begin_forward(step_id, plan, trains=trains)
        if trains:
            self._eval_modules.look(root, self.view)

    def _attach(
        self,
        hook: StepTransitions,
        root: nn.Module,
        plan: Plan,
        arguments: Arguments | None,
        step_id: StepId,
        compiled: bool,
    ) -> None:
        view = self.parameters.view
        if compiled and not self.module_hooks.is_on:
            note_missed(hook)
            return
        due = self.parameters.due_after_forward
        self.module_hooks.attach(root, view, plan, arguments, step_id, watch_end=due, also=widest(hook))

    def arm(self, hook: StepTransitions) -> None:
        """Attach module hooks before the next forward, which may be compiled.

        The next forward may belong to the running step or to the next step, because one compiled function may
        contain the calls of all roots.
        """
        root = self.reference()
        due = self.compiled.root_is_compiled and hook._may_be_saved_next()
        self.compiled.capture_disabled = not due
        if due and root is not None:
            hook._armed = hook._busy = True
            view, nothing = self.parameters.current_view(), hook._clock.plan_of(())
            self.module_hooks.attach(root, view, nothing, None, None, watch_end=True, also=widest(hook))

    def begin_recording(self, hook: StepTransitions) -> None:
        """Attach module hooks before a forward that is recorded into a CUDA graph, outside of a step."""
        root = self.reference()
        if root is not None:
            view, plan, step_id = (
                self.parameters.current_view(),
                hook._clock.plan_of_all(),
                hook._clock.now.step_id,
            )
            self.module_hooks.attach(root, view, plan, None, step_id, watch_end=False)

    def disarm(self) -> None:
        """Detach the module hooks before a forward that is not compiled or not saved."""
        if self.module_hooks.step is None and self.module_hooks.is_on:
            self.compiled.capture_disabled = True
            self.module_hooks.detach()

    def rest(self) -> None:
        """Detach module hooks, because another step becomes the current one."""
        # Hooks without a step are attached for a compiled forward (arm()).
        if self.module_hooks.step is not None:
            found = self.module_hooks.end_step()
            if found and self.by_itself and not self.compiled.root_is_compiled:
                self.entries.found(self)

    def forward_ended(self, keep: bool) -> None:
        """Handle the end of the root's forward. keep: The script may call its modules later in the step."""
        self.module_hooks.forward_ended(
            keep=keep and not self.compiled.root_is_compiled, always=self.entries.on or not self.follows
        )

    def _end_forward(self) -> None:
        hook = self._hook()
        if hook is not None:
            hook._end_forward(self)

    def backward_ended(self) -> None:
        """Store the gradients after a backward, for a model without a known optimizer."""
        self.signs.backward_ended(self.parameters.held() or [])

    def finish(self, accumulates: bool) -> None:
        """End the training step. accumulates: No optimizer has stepped yet, and gradients may be kept."""
        if self.module_hooks.has_pending_backward:
            self.module_hooks.finish_backward()
        parameters = self.parameters
        if parameters.pending is not None and not (accumulates and parameters.accumulates):
            parameters.finish()

    def switch_off(self, part: str) -> None:
        """Switch off the part of the hook that failed."""
        if part in ("activations", "losses"):
            self.module_hooks.switch_off()
        elif part == "output gradients":
            self.module_hooks.switch_off_output_gradients()
        elif part == "steps":
            self.detach()
        if part in ("parameters", "steps"):
            self.parameters.switch_off()
        elif part == "gradient order":
            self.parameters.order.switch_off()

    def detach(self) -> None:
        """Remove all hooks from the model except the pre-hooks."""
        self.module_hooks.detach()
        self.entries.take_off()
        self.sentinel.take_off()


def root_name(module: nn.Module, roots: Iterable[Root]) -> str | None:
    """Return a name that no root has, and that is not a prefix of the first root's module names.

    None for the first root, which has the name of its class.
    """
    views = [root.view for root in roots]
    if not views:
        return None
    taken = {view.root_name for view in views}
    taken |= {one.name.split(".")[0] for one in views[0].modules}
    name = base = class_name(innermost(module))
    number = 0
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name
