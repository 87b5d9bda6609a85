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
from tdcore.hooks.pytorch.compiled import compile_in_use, hide

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tdcore.hooks.pytorch.hook import Hook
    from tdcore.hooks.pytorch.roots import Further

__all__ = [
    "arm",
    "arm_losses",
    "begin_compiled_forward",
    "compiled_before",
    "note_missed",
    "rest",
    "widest",
]

_NONE: tuple[object, ...] = ()


def begin_compiled_forward(
    hook: Hook, watched: Hook | Further, inputs: tuple[list[torch.Tensor], str] | None
) -> None:
    """Compiled code tells that a root's forward begins. inputs: with ends of names; None: code without taps.

    watched: the hook itself, or a further root of it.
    """
    root = watched._root()
    if root is None or watched._off:
        return
    watched._compiled.met = True
    taps = watched._taps
    if inputs is None and taps.is_on:
        taps.detach()  # its step began inside the same code
    tapped = taps.is_on
    watched._on_forward(root, _NONE, None)
    if tapped and inputs is not None:
        taps.take_own(*inputs)
    elif hook._clock.plan is None:
        arm(hook, watched)


def compiled_before(hook: Hook, root: nn.Module) -> None:
    """The root is registered in a process that compiles: its call may be compiled already, or become so.

    Code without the root's hooks must not match any more, until the hook is closed: see SecondVariant.
    """
    hook._stack.callback(hide(root))
    arm(hook)


def arm(hook: Hook, watched: Hook | Further | None = None) -> None:
    """Chooses the variant of the next forward, of the clock or of a further root."""
    if watched is None or watched is hook:
        hook._guarded("activations", _arm, hook)
    else:
        hook._guarded("activations", watched.arm, hook)  # type: ignore[union-attr]  # it is no hook


def _arm(hook: Hook) -> None:
    root, parameters, clock = hook._root(), hook._parameters, hook._clock
    if root is None or parameters is None or hook._off:
        return
    due = clock.plan is not None if hook._by_hand else clock.may_save_next()
    hook._compiled.asleep = not due
    if due:
        view, nothing = parameters.current_view(), clock.plan_of(())
        hook._taps.attach(root, view, nothing, None, watch_end=True, also=widest(hook))
    if not hook._taps.losses_attached:
        arm_losses(hook)


def arm_losses(hook: Hook) -> None:
    """Loss modules in compiled code keep their taps between saved steps, and pass them by while asleep."""
    hook._taps.attach_losses(hook._clock.plan_of(()), widest(hook))


def rest(hook: Hook) -> None:
    """A step begins that is not saved: nothing is to be taken from the losses.

    Nor from modules whose taps were put on in case that a root's call is compiled.
    """
    taps = hook._taps
    hook._further.begin_step(hook)
    if hook._compiled.met:
        arm_losses(hook)
        return
    taps.left_on = False
    taps.detach_losses()
    if taps.end_attached:
        taps.detach()


def widest(hook: Hook) -> Plan | None:
    """The plan of all that is ever saved, in a process that compiles."""
    return hook._clock.plan_of(hook._clock.included) if compile_in_use() else None


def note_missed(hook: Hook) -> None:
    """A step is saved whose forward runs without taps."""
    hook._compiled.missed += 1
    hook._notes["compiled"] = {"steps_without_activations": hook._compiled.missed}
    hook._warn(
        "activations of a first step are missing: torch.compile was called after register_module(), or the "
        "step is the first in its mode; the next ones will be there (collections.json counts: 'compiled')"
    )
