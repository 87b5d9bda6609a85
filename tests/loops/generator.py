"""Training loops as data: the dataclass `Loop`, a seeded generator and a hypothesis strategy.

A loop consists of *windows*. A window consists of one or more *turns*. Each turn ends with an update:

    chain, parallel   one turn per window: all roots, one after the other or in parallel
    turns             one turn per root
    gan               the turn of the critic (two forwards and backwards), then the turn of the generator

A turn consists of one or more *bodies*: forward, loss, backward. Gradient accumulation is a turn of several
bodies.

Combinations for which the rule of steps has no single answer are not generated: `without_ambiguity()`
replaces each of them by a similar loop. The table lists them with their numbers in `EXCLUSIONS`.

    no.  not combined                                        reason
    1    gan with fewer than two roots                       there is no critic
    2    turns or gan with shared optimizers, several        the scheme itself defines them
         calls or a detached part
    3    turns or gan with a frozen root                     the loss of its turn has no gradient
    4    a frozen root at the end of a model                 the loss may have no gradient
    5    closure or SAM with turns, gan, a gradient          torch raises, or the update is a second window
         scaler, step() called twice, or an optimizer
         that holds only some of the roots
    6    SAM with gradient accumulation; SAM with a          such a loop does not exist; the outer step
         closure and several optimizers                      uses one closure for all roots
    7    updates without a torch optimizer, with several     before the first sign of an update, the next
         bodies per turn and no earlier window that          forward after a backward is the boundary
         gave a sign of an update
    8    updates without a torch optimizer, gradients        gradients that are cleared before the backward
         cleared between forward and backward, and           of the same step are not a sign that the step has
         several bodies or no change of weights              ended
    9    updates without a torch optimizer and roots         it is not defined whether updates of roots that
         that are not registered                             are not registered are a sign
    10   updates without a torch optimizer with one          there is no optimizer
         optimizer per root, a scaler or step() twice
    11   an optimizer inside of backward with                every backward is an update and clears its
         accumulation, clipping, a scaler, zero_grad         gradients
         or step() twice
    12   a scaler with step() twice                          torch raises
    13   a scaler with an optimizer without gradients        torch raises
    14   a fused optimizer that steps with planted Inf       the optimizer steps, its kernel does nothing
    15   planted Inf that is never cleared                   the scaler would skip all later steps
    16   clipping of gradients that are still scaled         such a loop is a mistake
    17   an optimizer that holds only some of the roots,     "no optimizer exists" applies to one root: a
         with several bodies or a scaler                     root without one would end the step of others
    18   no registered root that is ever updated             there is no training step to compare
    19   clock="forward" with several forwards of the        the rule defines the numbers of the steps of
         first root per update, evaluation inside of a       smdebug, and not the step of each row
         step, set_mode(), turns, training in eval mode,
         or training without forward()
    20   hook.step() with evaluation inside of a step,       the script ends the step there; the mode of a
         set_mode(), training in eval mode, or rollouts      step of a rollout is not defined
         in training mode
    21   training in eval mode with evaluation that          it cannot be distinguished from training
         computes gradients, set_mode() or closures
    22   training in eval mode with a root that no           this root is never trained, but its forwards
         optimizer holds, or without a torch optimizer       are part of the training
    23   a loss that is recorded after the update, with      it belongs to "the step that began last", which
         evaluation inside of the step, or with a closure    may be the evaluation
    24   evaluation inside of a turn of one body             such a turn has no place between two bodies
    26   planted Inf in turns, and a root that is not        a scaler forgets the iteration of one optimizer
         registered                                          with its update() after the next one's
    25   a save interval of 10 with few windows              nothing but the first step would be saved
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.loops.modules import FROZEN, KINDS

__all__ = [
    "BY_HAND",
    "CLOSURES",
    "EXCLUSIONS",
    "OPTIMIZERS",
    "SAMS",
    "Loop",
    "from_text",
    "loops",
    "random_loop",
    "simpler",
    "values_of",
    "without_ambiguity",
]

Choose = Callable[[Sequence[Any]], Any]

OPTIMIZERS = ("sgd", "adam", "adam_foreach", "adam_fused")  # can be driven by a GradScaler
CLOSURES = ("adam_closure", "lbfgs_1", "lbfgs_4", "sam_closure")
SAMS = ("sam", "sam_closure")
BY_HAND = ("hand_data_add", "hand_no_grad", "hand_data_set", "own_class", "none")  # no torch.optim.Optimizer
UPDATERS = (*OPTIMIZERS, "sam", "in_backward", *CLOSURES, *BY_HAND)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One training loop. The defaults describe the simplest loop: one model, SGD, zero_grad before forward.

    Models:
        roots: kinds of modules, in the order in which they run.
        register: positions of roots, in the order of register_module().
        detach: the output of the first root is detached.
        calls: forwards of the model per body.
        breadth: each root runs on all inputs before the next root does.
        method: trains through `compute()`.
    Updates:
        owner: the roots that one optimizer holds ("one": all roots, "each", "first", "last").
        twice: step() is called twice.
        warmup: the first window has turns of one body.
    Evaluation:
        evaluate: "start", "after" an update, "inside" of a window between two bodies, "before_backward".
        every: evaluates after every n-th update.
    Recording:
        loss_late: the loss is recorded after the update.
        interval, start, eval_interval: SaveConfig.
        steps: the event that begins a step: "update", "forward" (Hook(clock="forward")), "hand"
            (hook.step()).
        early: the hook is created before the optimizers.
        train_in_eval: the model is trained in eval mode.
    """

    roots: tuple[str, ...] = ("mlp",)
    register: tuple[int, ...] = (0,)
    scheme: str = "chain"
    detach: bool = False
    calls: int = 1
    breadth: bool = False
    method: bool = False
    updater: str = "sgd"
    owner: str = "one"
    twice: bool = False
    zero: str = "before_forward"
    zero_how: str = "none"
    accumulate: int = 1
    warmup: bool = False
    clip: bool = False
    scaler: str = "none"
    evaluate: str = "none"
    every: int = 1
    how: str = "eval_no_grad"
    evaluate_roots: str = "all"
    evaluate_calls: int = 1
    loss: str = "criterion"
    loss_late: bool = False
    windows: int = 3
    interval: int = 1
    start: int = 0
    eval_interval: int = 1
    set_mode: str = "none"
    steps: str = "update"
    early: bool = False
    train_in_eval: bool = False
    seed: int = 0

    def text(self) -> str:
        """Return the fields that differ from their defaults, as JSON in one line; see from_text()."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return json.dumps({name: value for name, value in fields.items() if value != defaults[name]})

    @property
    def torch_optimizer(self) -> bool:
        """Whether a torch.optim.Optimizer makes the updates."""
        return self.updater not in BY_HAND

    @property
    def bodies(self) -> int:
        """The largest number of bodies in a turn."""
        return 2 if self.scheme == "gan" else self.accumulate

    @property
    def owned(self) -> tuple[int, ...]:
        """Positions of the roots that are updated."""
        positions = [at for at, kind in enumerate(self.roots) if kind != FROZEN]
        if self.scheme == "gan":
            positions = positions[:2]
        if self.owner in ("first", "last"):
            positions = positions[:1] if self.owner == "first" else positions[-1:]
        return tuple(positions) if self.updater != "none" else ()


def values_of(loop: Loop) -> dict[str, object]:
    """Return the values by which loops are selected. Lists count with their lengths, kinds and order."""
    values: dict[str, object] = {field.name: getattr(loop, field.name) for field in dataclasses.fields(loop)}
    for name in ("roots", "register", "seed"):
        del values[name]
    values |= {"number of roots": len(loop.roots), "registered": len(loop.register)}
    values |= {f"has {kind}": True for kind in loop.roots}
    return values | {"in order": list(loop.register) == sorted(loop.register)}


def from_text(text: str) -> Loop:
    """Return the loop of a Loop.text()."""
    fields: dict[str, Any] = json.loads(text)
    for name in ("roots", "register"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return Loop(**fields)


def random_loop(seed: int, number: int) -> Loop:
    """Return loop `number` of the sequence `seed`; it is the same on every machine."""
    source = random.Random(f"{seed}/{number}")
    return _build(source.choice)


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    """Return a hypothesis strategy for these loops, which shrinks to the simplest loop that still fails."""
    return _build(lambda options: draw(st.sampled_from(options)))


def _build(choose: Choose) -> Loop:
    """Draw all fields.

    The simplest option comes first in every list, because hypothesis shrinks towards it.
    """
    rare = (False, False, False, True)
    count = choose((1, 1, 2, 2, 3, 4))
    register = list(range(count))
    for at in range(count):  # a permutation; the simplest one changes nothing
        other = choose(range(at, count))
        register[at], register[other] = register[other], register[at]
    if count > 1 and choose((False,) * 5 + (True,)):
        register = register[: choose(range(1, count))]
    intervals = (1, 1, 1, 2, 3, 10)
    loop = Loop(
        roots=tuple(choose(KINDS) for _ in range(count)),
        register=tuple(register),
        scheme=choose(("chain", "chain", "parallel", "turns", "gan")),
        detach=choose(rare),
        calls=choose((1, 1, 2, 3)),
        breadth=choose((False, True)),
        method=choose(rare),
        updater=choose(("sgd", *UPDATERS)),
        owner=choose(("one", "one", "each", "each", "first", "last")),
        twice=choose(rare),
        zero=choose(("before_forward", "after_forward", "after_step", "never")),
        zero_how=choose(("none", "zeros", "by_hand_none", "by_hand_zero")),
        accumulate=choose((1, 1, 2, 3, 4)),
        warmup=choose(rare),
        clip=choose(rare),
        scaler=choose(("none", "none", "none", "plain", "unscale", "inf")),
        evaluate=choose(("none", "none", "after", "after", "inside", "before_backward", "start")),
        every=choose((1, 2)),
        how=choose(("eval_no_grad", "eval_grad", "eval_inference", "train_no_grad")),
        evaluate_roots=choose(("all", "first", "last")),
        evaluate_calls=choose((1, 2)),
        loss=choose(("criterion", "functional", "none")),
        loss_late=choose(rare),
        windows=choose((2, 3, 4, 5)),
        interval=choose(intervals),
        start=choose((0, 0, 0, 1, 2)),
        eval_interval=choose(intervals[:-1]),
        set_mode=choose(("none", "none", "none", "none", "follow", "train", "global")),
        steps=choose(("update",) * 6 + ("forward", "hand")),
        early=choose((False, True)),
        train_in_eval=choose((False,) * 7 + (True,)),
        seed=choose(range(4)),
    )
    return without_ambiguity(loop)


@dataclass(frozen=True)
class Exclusion:
    """A combination that is not generated.

    number: in the table of this module. changes: the fields that replace the combination.
    """

    number: int
    applies: Callable[[Loop], bool]
    changes: Callable[[Loop], dict[str, Any]]


def _always(**changes: Any) -> Callable[[Loop], dict[str, Any]]:
    return lambda loop: changes


def _no_teacher(loop: Loop, *positions: int) -> dict[str, Any]:
    roots = list(loop.roots)
    for at in positions or range(len(roots)):
        roots[at] = "mlp" if roots[at] == FROZEN else roots[at]
    return {"roots": tuple(roots)}


def _apart(loop: Loop) -> bool:
    return loop.scheme in ("turns", "gan")


def _partial(loop: Loop) -> bool:
    return loop.owner in ("first", "last")


def _closure(loop: Loop) -> bool:
    return loop.updater in CLOSURES or loop.updater in SAMS


def _inside(loop: Loop) -> bool:
    return loop.evaluate in ("inside", "before_backward")


def _unscaled_only(loop: Loop) -> bool:
    return loop.clip and loop.scaler == "plain"


def _first_run_first(loop: Loop) -> dict[str, Any]:
    return {"register": tuple(sorted(loop.register)) if 0 in loop.register else (0, *sorted(loop.register))}


def _all_registered(loop: Loop) -> dict[str, Any]:
    left = [at for at in range(len(loop.roots)) if at not in loop.register]
    return {"register": (*loop.register, *left)}


EXCLUSIONS = (
    Exclusion(1, lambda it: it.scheme == "gan" and len(it.roots) < 2, _always(scheme="chain")),
    Exclusion(
        2,
        lambda it: _apart(it) and (it.owner != "each" or it.calls > 1 or it.detach) and it.torch_optimizer,
        _always(owner="each", calls=1, detach=False),
    ),
    Exclusion(
        2,
        lambda it: _apart(it) and (it.calls > 1 or it.detach or _partial(it)),
        _always(owner="one", calls=1, detach=False),
    ),
    Exclusion(2, lambda it: it.scheme == "gan" and it.accumulate > 1, _always(accumulate=1)),
    Exclusion(3, lambda it: _apart(it) and FROZEN in it.roots, _no_teacher),
    Exclusion(4, lambda it: it.roots[-1] == FROZEN, lambda it: _no_teacher(it, len(it.roots) - 1)),
    Exclusion(
        5,
        lambda it: _closure(it) and (_apart(it) or it.scaler != "none" or it.twice or _partial(it)),
        lambda it: {
            "scheme": "chain" if _apart(it) else it.scheme,
            "scaler": "none",
            "twice": False,
            "owner": "one" if _partial(it) else it.owner,
        },
    ),
    Exclusion(6, lambda it: it.updater in SAMS and it.accumulate > 1, _always(accumulate=1)),
    Exclusion(6, lambda it: it.updater == "sam_closure" and it.owner != "one", _always(owner="one")),
    Exclusion(7, lambda it: not it.torch_optimizer and it.bodies > 1 and not it.warmup, _always(warmup=True)),
    Exclusion(
        8,
        lambda it: (
            it.zero == "after_forward"
            and not it.torch_optimizer
            and (it.bodies > 1 or it.updater == "none" or len(it.owned) < len(it.roots))
        ),
        _always(zero="before_forward"),
    ),
    Exclusion(9, lambda it: not it.torch_optimizer and len(it.register) < len(it.roots), _all_registered),
    Exclusion(
        10,
        lambda it: not it.torch_optimizer and (it.owner == "each" or it.scaler != "none" or it.twice),
        _always(owner="one", scaler="none", twice=False),
    ),
    Exclusion(
        11,
        lambda it: (
            it.updater == "in_backward"
            and (
                it.accumulate > 1
                or it.clip
                or it.twice
                or it.scaler != "none"
                or it.zero != "never"
                or it.owner not in ("one", "each")
            )
        ),
        lambda it: {
            "accumulate": 1,
            "clip": False,
            "twice": False,
            "scaler": "none",
            "zero": "never",
            "owner": "each" if _apart(it) else "one",
        },
    ),
    Exclusion(12, lambda it: it.scaler != "none" and it.twice, _always(twice=False)),
    Exclusion(13, lambda it: it.scaler != "none" and it.detach, _always(detach=False)),
    Exclusion(14, lambda it: it.scaler == "inf" and it.updater == "adam_fused", _always(updater="adam")),
    Exclusion(15, lambda it: it.scaler == "inf" and it.zero == "never", _always(zero="before_forward")),
    Exclusion(16, _unscaled_only, _always(scaler="unscale")),
    Exclusion(
        17,
        lambda it: _partial(it) and it.torch_optimizer and (it.bodies > 1 or it.scaler != "none"),
        _always(accumulate=1, scaler="none"),
    ),
    Exclusion(17, lambda it: _partial(it) and len(it.roots) == 1, _always(owner="one")),
    Exclusion(
        18,
        lambda it: it.torch_optimizer and not set(it.register) & set(it.owned),
        _all_registered,
    ),
    Exclusion(
        19,
        lambda it: (
            it.steps == "forward"
            and (
                it.register[0] != 0
                or it.calls > 1
                or it.bodies > 1
                or _apart(it)
                or _closure(it)
                or _inside(it)
                or it.evaluate_roots != "all"
                or it.evaluate_calls > 1
                or it.set_mode != "none"
                or it.method
                or it.train_in_eval
            )
        ),
        lambda it: {
            **_first_run_first(it),
            "calls": 1,
            "accumulate": 1,
            "scheme": "chain" if _apart(it) else it.scheme,
            "updater": "sgd" if _closure(it) else it.updater,
            "evaluate": "after" if _inside(it) else it.evaluate,
            "evaluate_roots": "all",
            "evaluate_calls": 1,
            "set_mode": "none",
            "method": False,
            "train_in_eval": False,
        },
    ),
    Exclusion(
        20,
        lambda it: (
            it.steps == "hand"
            and (_inside(it) or it.set_mode != "none" or it.how == "train_no_grad" or it.train_in_eval)
        ),
        lambda it: {
            "evaluate": "after" if _inside(it) else it.evaluate,
            "set_mode": "none",
            "how": "eval_no_grad" if it.how == "train_no_grad" else it.how,
            "train_in_eval": False,
        },
    ),
    Exclusion(
        21,
        lambda it: it.train_in_eval and (it.how == "eval_grad" or it.set_mode != "none"),
        _always(how="eval_no_grad", set_mode="none"),
    ),
    Exclusion(21, lambda it: it.train_in_eval and _closure(it), _always(updater="sgd")),
    Exclusion(
        22,
        lambda it: it.train_in_eval and (not it.torch_optimizer or _partial(it) or FROZEN in it.roots),
        _always(train_in_eval=False),
    ),
    Exclusion(
        23,
        lambda it: it.loss_late and (_inside(it) or it.loss != "functional" or it.updater in CLOSURES),
        _always(loss_late=False),
    ),
    Exclusion(24, lambda it: it.evaluate == "inside" and it.bodies == 1, _always(evaluate="after")),
    Exclusion(
        26,
        lambda it: _apart(it) and it.scaler == "inf" and len(it.register) < len(it.roots),
        _all_registered,
    ),
    Exclusion(25, lambda it: it.interval == 10 and it.windows < 12, _always(windows=12)),
)


def _without_effect(loop: Loop) -> list[str]:
    """Return the fields that change nothing in this loop."""
    fields = []
    if loop.evaluate == "none":
        fields += ["every", "how", "evaluate_roots", "evaluate_calls"]
    elif loop.evaluate in ("start", "inside"):
        fields += ["every"]
    if len(loop.roots) == 1:
        fields += ["evaluate_roots", "detach"]
        fields += ["owner"] if loop.scheme != "turns" else []
    if loop.zero == "never":
        fields += ["zero_how"]
    if loop.calls == 1 or loop.scheme == "parallel":
        fields += ["breadth"]
    if loop.scheme != "chain":
        fields += ["detach"]
    if loop.bodies == 1:
        fields += ["warmup"]
    return fields


def without_ambiguity(loop: Loop) -> Loop:
    """Return the loop, or a similar loop that no exclusion applies to.

    Fields without effect get their defaults, so that equal loops have equal texts. Raises RuntimeError if
    there is no such loop.
    """
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Loop)}
    for _ in range(50):
        found = next((one for one in EXCLUSIONS if one.applies(loop)), None)
        if found is None:
            plain = {name: defaults[name] for name in _without_effect(loop)}
            return dataclasses.replace(loop, **plain)
        loop = dataclasses.replace(loop, **found.changes(loop))
    raise RuntimeError(f"exclusions contradict each other for {loop.text()}")


def simpler(loop: Loop) -> Iterator[Loop]:
    """Yield loops with one non-default field less, for shrinking without hypothesis."""
    for field in dataclasses.fields(loop):
        if getattr(loop, field.name) != field.default and field.name not in ("roots", "register"):
            default: dict[str, Any] = {field.name: field.default}
            yield without_ambiguity(dataclasses.replace(loop, **default))
    for at in range(len(loop.roots) if len(loop.roots) > 1 else 0):
        roots = loop.roots[:at] + loop.roots[at + 1 :]
        register = tuple(one - (one > at) for one in loop.register if one != at) or (0,)
        yield without_ambiguity(dataclasses.replace(loop, roots=roots, register=register))
    for at, kind in enumerate(loop.roots):
        if kind != "mlp":
            yield without_ambiguity(
                dataclasses.replace(loop, roots=(*loop.roots[:at], "mlp", *loop.roots[at + 1 :]))
            )
