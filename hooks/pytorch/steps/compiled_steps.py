"""Steps of a root whose call is itself compiled: module hooks are attached before the call, not inside it.

When compiled code reports that such a forward begins, it is too late to attach hooks for this forward.
Therefore `arm` attaches hooks at the end of the previous forward, with an empty plan, because the plan of the
step is not known yet. When the step begins, the hooks of its plan replace them. If no hooks were attached (in
the first step of a mode, or after a request to capture more), the activations of the step are missing;
collections.json counts these steps. Threads: the training thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.compile.code_variants import compile_in_use

if TYPE_CHECKING:
    import torch

    from tdcore.hooks.pytorch.steps.driver import TrainingDriver
    from tdcore.hooks.pytorch.steps.root import Root
    from tdcore.hooks.pytorch.steps.step_transitions import StepTransitions

__all__ = [
    "arm",
    "arm_losses",
    "begin_compiled_forward",
    "note_missed",
    "widest",
]

_NONE: tuple[object, ...] = ()


def begin_compiled_forward(
    hook: TrainingDriver, root: Root, inputs: tuple[list[torch.Tensor], str] | None
) -> None:
    """Begin the step of a root's forward in compiled code.

    Args:
        hook: The hook.
        root: The root whose forward begins.
        inputs: The input of the forward, with suffixes of the names; None: the code was compiled without
            module hooks.
    """
    module = root.reference()
    if module is None or hook._off:
        return
    root.compiled.root_is_compiled = True
    module_hooks = root.module_hooks
    if inputs is None and module_hooks.is_on:
        module_hooks.detach()  # the step of this forward began in the same compiled code
    attached = module_hooks.is_on
    hook._compiled_call = True
    try:
        hook._on_forward(root, module, _NONE, None)
    finally:
        hook._compiled_call = False
    if attached and inputs is not None:
        module_hooks.record_root_input(*inputs)
    elif hook._clock.plan is None:
        arm(hook, root)


def arm(hook: StepTransitions, root: Root) -> None:
    """Select the code variant of the root's next forward."""
    hook._guarded("activations", root.arm, hook)
    if not hook._losses.attached:
        hook._guarded("losses", arm_losses, hook)


def arm_losses(hook: StepTransitions) -> None:
    """Attach hooks to compiled loss modules even between saved steps, where the gate disables them."""
    hook._losses.attach(hook._clock.plan_of(()), widest(hook))


def widest(hook: StepTransitions) -> Plan | None:
    """Return the plan of all saved collections if torch.compile is in use, otherwise None."""
    return hook._clock.plan_of(hook._clock.included) if compile_in_use() else None


def note_missed(hook: StepTransitions) -> None:
    """Note a saved step whose forward runs without module hooks."""
    hook._gate.missed += 1
    hook._notes["compiled"] = {"steps_without_activations": hook._gate.missed}
    hook._warn(
        "activations of a first step are missing: torch.compile was called after register_module(), or the "
        "step is the first in its mode; later steps have activations (collections.json has the number of "
        "missed steps: 'compiled')"
    )
