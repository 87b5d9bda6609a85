"""Signs of faults in what is trained: parameters without gradients, without an optimizer, or never used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tdcore.rules.diagnosis.evidence import CERTAIN, LIKELY, POSSIBLE, Evidence
from tdcore.rules.diagnosis.facts import Facts, History, module_of
from tdcore.rules.measures.format import rounded

__all__ = [
    "cleared_before_step",
    "frozen",
    "graph_is_cut",
    "never_called",
    "never_cleared",
    "not_owned",
    "stays_in_eval",
    "updates_in_evaluation",
]

_NO_BACKWARD = "no_backward"
_IN_EVAL = "eval_in_training"


def _names(facts: Facts, note: str) -> set[str]:
    found = facts.notes.get(note) or ()
    return {str(name) for name in found}


def _unused(facts: Facts) -> list[str]:
    """Gradients that are always absent, of parameters in modules that no forward pass called."""
    uncalled = _names(facts, "never_called")
    return [
        name
        for mode, name in facts.absent
        if mode == facts.training and module_of(name) in uncalled and facts.get(name) is None
    ]


def never_called(facts: Facts) -> Iterator[Evidence]:
    """Modules with parameters that the forward pass never calls, and whose parameters it never reads."""
    names = [name for name in _unused(facts) if name.startswith("gradient/")]
    if names:
        modules = sorted({module_of(name) for name in names})
        yield Evidence(
            why=f"the forward pass never calls {', '.join(modules[:3])}",
            strength=0.9,
            tensors=tuple(dict.fromkeys(names)),
            mode=facts.training,
        )


def not_owned(facts: Facts) -> Iterator[Evidence]:
    """Parameters that have gradients, or could have them, and that no optimizer holds."""
    frozen_names = _names(facts, "frozen")
    unused = {module_of(name) for name in _unused(facts)}
    names = [
        name
        for name in facts.notes.get("not_owned") or ()
        if name not in frozen_names and module_of(name) not in unused
    ]
    if names:
        yield Evidence(
            why=f"no optimizer holds {', '.join(names[:3])}"
            + (f" and {len(names) - 3} more" if len(names) > 3 else ""),
            strength=CERTAIN,
            tensors=tuple(names),
            mode=facts.training,
        )


def frozen(facts: Facts) -> Iterator[Evidence]:
    """Parameters with requires_grad=False between layers that are trained."""
    names = _names(facts, "frozen")
    if not names:
        return
    weights = [one.name for one in facts.of_kind("weight")]
    at = [index for index, name in enumerate(weights) if name in names]
    trained = [index for index, name in enumerate(weights) if name not in names]
    within = bool(at and trained and min(trained) < max(at) and len(at) < len(trained))
    yield Evidence(
        why=f"requires_grad is False for {', '.join(sorted(names)[:3])}"
        + (", between layers that are trained" if within else ""),
        strength=LIKELY if within else POSSIBLE - 0.1,
        tensors=tuple(sorted(names)),
        mode=facts.training,
    )


def graph_is_cut(facts: Facts) -> Iterator[Evidence]:
    """Parameters that no backward pass ever reaches, though their modules are called."""
    others = _names(facts, "frozen") | _names(facts, "not_owned")
    unused = _names(facts, "never_called")
    cut: list[str] = []
    for (mode, name), reasons in facts.absent.items():
        if mode != facts.training or not name.startswith("gradient/"):
            continue
        bare = name.removeprefix("gradient/")
        seen = facts.get(name)
        if (
            reasons.get(_NO_BACKWARD, 0) >= 3
            and (seen is None or len(seen) == 0)
            and bare not in others
            and module_of(bare) not in unused
        ):
            cut.append(name)
    if cut and len(cut) < len(cut) + len(facts.gradients):
        yield Evidence(
            why=f"no backward pass reaches {len(cut)} parameters ({cut[0].removeprefix('gradient/')} first), "
            f"while {len(facts.gradients)} others get gradients",
            strength=CERTAIN,
            tensors=tuple(cut),
            mode=facts.training,
        )


def cleared_before_step(facts: Facts) -> Iterator[Evidence]:
    """Gradients that are zero in every layer when the optimizer steps."""
    gradients = [one for one in facts.gradients if len(one) >= 3]
    if not gradients or not facts.losses:
        return
    zero = [one for one in gradients if np.all(one.largest == 0)]
    if len(zero) == len(gradients):
        yield Evidence(
            why=f"all {len(gradients)} gradients are zero when the optimizer steps, {len(zero[0])} times of "
            f"{len(zero[0])}",
            strength=0.93,
            tensors=tuple(one.name for one in zero),
            mode=facts.training,
            step=int(zero[0].steps[0]),
        )


def never_cleared(facts: Facts) -> Iterator[Evidence]:
    """Gradients that add up: they change little from step to step and grow all the time."""
    growing: list[tuple[History, float]] = []
    judged = 0
    for gradient in facts.gradients:
        weight = facts.parameter_of(gradient)
        if weight is None or not weight.is_matrix or len(gradient) < 30 or np.any(gradient.bad > 0):
            continue
        sizes = gradient.rms
        apart = np.flatnonzero(np.diff(gradient.steps) > 2)
        row = int(apart[0]) + 1 if apart.size else sizes.size  # values of steps in a row, from the first on
        if not np.all(sizes > 0) or row < 30:
            continue
        judged += 1
        changes = np.abs(np.diff(sizes[:row])) / sizes[1:row]
        growth = float(np.max(sizes) / np.median(sizes[:3]))
        if np.median(changes[5:]) < 0.08 and growth > 4:
            growing.append((gradient, growth))
    if judged and len(growing) >= 0.6 * judged:
        names = [one.name for one, _ in growing]
        yield Evidence(
            why=f"the gradients of {len(growing)} of {judged} weights grow up to "
            f"{rounded(max(growth for _, growth in growing))} times and change by a few percent "
            "from step to step, as sums over many steps do",
            strength=0.88,
            tensors=tuple(names),
            mode=facts.training,
            step=int(growing[0][0].steps[1]),
        )


def stays_in_eval(facts: Facts) -> Iterator[Evidence]:
    """Dropout or normalisation in eval mode while the model trains, or a model that trains in eval mode."""
    noted = facts.notes.get(_IN_EVAL) or {}
    frozen_modules = {module_of(name) for name in _names(facts, "frozen")}
    names = [path for path, when in noted.items() if when == "always" and path not in frozen_modules]
    if names:
        of_model = facts.root in names
        yield Evidence(
            why=("the model" if of_model else ", ".join(names[:3]))
            + f"{' and more' if len(names) > 3 else ''} stays in eval mode while the model is trained",
            strength=0.85,
            tensors=tuple(f"{name}_output_0" for name in names),
            mode=facts.training,
        )


def updates_in_evaluation(facts: Facts) -> Iterator[Evidence]:
    """Gradients, or weights that change, in EVAL mode."""
    noted = facts.notes.get(_IN_EVAL) or {}
    if noted.get(facts.root, "always") != "always":
        evaluated = next(facts.of_kind("loss", "output", mode="EVAL"), None)
        yield Evidence(
            why="an optimizer steps after forwards in eval mode, at some steps of the training",
            strength=0.9,
            tensors=tuple(one.name for one in facts.matrices),
            mode="EVAL",
            step=int(evaluated.steps[0]) if evaluated is not None else 0,
        )
        return
    names = [one.name for one in facts.of_kind("gradient", mode="EVAL") if np.any(one.largest > 0)]
    if names and facts.training != "EVAL":
        first = facts.get(names[0], "EVAL")
        yield Evidence(
            why=f"{len(names)} parameters get gradients in EVAL mode",
            strength=0.9,
            tensors=tuple(names),
            mode="EVAL",
            step=int(first.steps[0]) if first is not None else 0,
        )
        return
    for weight in facts.of_kind("weight", mode="EVAL"):
        consecutive = np.diff(weight.steps) == 1
        moved = consecutive & (np.diff(weight.mean) != 0) & (np.diff(weight.square_sum) != 0)
        between = _training_steps_between(facts, weight)
        if between is not None and np.any(moved & (between == 0)):
            at = int(np.flatnonzero(moved & (between == 0))[0]) + 1
            yield Evidence(
                why=f"{weight.name} changes within an evaluation",
                strength=0.9,
                tensors=(weight.name,),
                mode="EVAL",
                step=int(weight.steps[at]),
            )
            return


def _training_steps_between(facts: Facts, weight: History) -> npt.NDArray[np.int64] | None:
    training = facts.get(weight.name)
    if training is None or len(weight) < 2:
        return None
    return np.diff(np.searchsorted(training.global_steps, weight.global_steps))
