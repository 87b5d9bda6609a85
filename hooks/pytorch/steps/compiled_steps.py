"""Steps of a root whose call is itself compiled: their taps are put on before the call, not inside it.

When compiled code tells that such a forward begins, it is too late to put taps on for it, so `arm` has done
it at the end of the forward before: with taps that take nothing, since the plan was not known then. The begin
of the step puts those of its plan in their place. Where the guess was wrong (a first step in another mode, a
request to capture more) the activations of that step are missing; that is counted in collections.json.
Threads: the training thread.
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
    """Compiled code tells that a root's forward begins. inputs: with ends of names; None: without taps."""
    module = root.reference()
    if module is None or hook._off:
        return
    root.compiled.root_is_compiled = True
    module_hooks = root.module_hooks
    if inputs is None and module_hooks.is_on:
        module_hooks.detach()  # its step began inside the same code
    tapped = module_hooks.is_on
    hook._compiled_call = True
    try:
        hook._on_forward(root, module, _NONE, None)
    finally:
        hook._compiled_call = False
    if tapped and inputs is not None:
        module_hooks.record_root_input(*inputs)
    elif hook._clock.plan is None:
        arm(hook, root)


def arm(hook: StepTransitions, root: Root) -> None:
    """Chooses the variant of the root's next forward."""
    hook._guarded("activations", root.arm, hook)
    if not hook._losses.attached:
        hook._guarded("losses", arm_losses, hook)


def arm_losses(hook: StepTransitions) -> None:
    """Loss modules in compiled code keep their taps between saved steps, and pass them by while asleep."""
    hook._losses.attach(hook._clock.plan_of(()), widest(hook))


def widest(hook: StepTransitions) -> Plan | None:
    """The plan of all that is ever saved, in a process that compiles."""
    return hook._clock.plan_of(hook._clock.included) if compile_in_use() else None


def note_missed(hook: StepTransitions) -> None:
    """A step is saved whose forward runs without taps."""
    hook._gate.missed += 1
    hook._notes["compiled"] = {"steps_without_activations": hook._gate.missed}
    hook._warn(
        "activations of a first step are missing: torch.compile was called after register_module(), or the "
        "step is the first in its mode; the next ones will be there (collections.json counts: 'compiled')"
    )
