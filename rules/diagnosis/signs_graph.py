"""Signs of faults in what is trained: parameters without gradients, without an optimizer, or never used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tdcore.rules.diagnosis.evidence import CERTAIN, LIKELY, Evidence
from tdcore.rules.diagnosis.facts import Facts
from tdcore.rules.diagnosis.histories import History
from tdcore.rules.measures.format import rounded
from tdcore.text.short_repr import how_many

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

_NO_BACKWARD, _CLEARED = "no_backward", "cleared"
_FEW = 0.2  # share of all weights
_IN_EVAL = "eval_in_training"


def _names(facts: Facts, note: str) -> set[str]:
    return set(facts.noted(note))


def _is_uncalled(facts: Facts, name: str) -> bool:
    """Whether no forward pass called the module of a parameter. The note lists outermost modules only."""
    module = facts.module_of(name)
    return any(module == one or module.startswith(f"{one}.") for one in facts.noted("never_called"))


def _unused(facts: Facts) -> list[str]:
    """Gradients that are always absent, of parameters in modules that no forward pass called."""
    return [
        name
        for mode, name in facts.absent
        if mode == facts.training
        and name.startswith("gradient/")
        and _is_uncalled(facts, name)
        and facts.get(name) is None
    ]


def never_called(facts: Facts) -> Iterator[Evidence]:
    """Modules that the forward pass never calls, and whose parameters have no gradients."""
    names = _unused(facts)
    if names:
        modules = sorted({facts.module_of(name) for name in names})
        yield Evidence(
            why=f"the forward pass never calls {', '.join(modules[:3])}",
            strength=0.9,
            tensors=tuple(dict.fromkeys(names)),
            mode=facts.training,
            step=facts.first_step,
        )


def not_owned(facts: Facts) -> Iterator[Evidence]:
    """Parameters that have gradients, or could have gradients, and that no optimizer has."""
    left_out = _names(facts, "frozen") | {name.removeprefix("gradient/") for name in _unused(facts)}
    names = [name for name in facts.noted("not_owned") if name not in left_out]
    if names:
        yield Evidence(
            why=f"no optimizer holds {', '.join(names[:3])}"
            + (f" and {len(names) - 3} more" if len(names) > 3 else ""),
            strength=CERTAIN,
            tensors=tuple(names),
            mode=facts.training,
            step=facts.first_step,
        )


def frozen(facts: Facts) -> Iterator[Evidence]:
    """A few parameters with requires_grad=False between layers that are trained.

    A frozen backbone, a teacher or adapters next to frozen layers are intended, and are not a fault.
    """
    names = _names(facts, "frozen")
    weights = [one.name for one in facts.of_kind("weight")]
    at = [index for index, name in enumerate(weights) if name in names]
    trained = [index for index, name in enumerate(weights) if name not in names]
    if not at or not trained or any("lora" in name.lower() or "adapter" in name.lower() for name in weights):
        return
    if min(trained) < min(at) and max(at) < max(trained) and len(at) <= max(1, _FEW * len(weights)):
        yield Evidence(
            why=f"requires_grad is False for {', '.join(sorted(names)[:3])}, between layers that are trained",
            strength=LIKELY,
            tensors=tuple(sorted(names)),
            mode=facts.training,
            step=facts.first_step,
        )


def graph_is_cut(facts: Facts) -> Iterator[Evidence]:
    """Parameters that no backward pass ever reaches, though their modules are called."""
    others = _names(facts, "frozen") | _names(facts, "not_owned")
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
            and not _is_uncalled(facts, bare)
        ):
            cut.append(name)
    if cut and facts.gradients:
        yield Evidence(
            why=f"no backward pass reaches {how_many(len(cut), 'parameter')} "
            f"({cut[0].removeprefix('gradient/')} first), while {len(facts.gradients)} others get gradients",
            strength=CERTAIN,
            tensors=tuple(cut),
            mode=facts.training,
            step=facts.first_step,
        )


def cleared_before_step(facts: Facts) -> Iterator[Evidence]:
    """Gradients that are zero in every layer when the optimizer steps."""
    gradients = [one for one in facts.gradients if len(one) >= 3]
    zero = [one.name for one in gradients if np.all(one.largest == 0)]
    times = max((len(one) for one in gradients), default=0)
    if not gradients:  # zero_grad() has set them to None
        cleared = {
            name: reasons.get(_CLEARED, 0)
            for (mode, name), reasons in facts.absent.items()
            if mode == facts.training and name.startswith("gradient/")
        }
        zero = [name for name, count in cleared.items() if count >= 3]
        times = max(cleared.values(), default=0)
        gradients = [] if len(zero) == len(cleared) else facts.gradients
    if zero and (not gradients or len(zero) == len(gradients)) and facts.losses:
        yield Evidence(
            why=f"all {len(zero)} gradients are zero or None when the optimizer steps, at {times} steps",
            strength=0.93,
            tensors=tuple(zero),
            mode=facts.training,
            step=facts.first_step,
        )


def never_cleared(facts: Facts) -> Iterator[Evidence]:
    """Gradients that accumulate: they change little from step to step and grow all the time."""
    growing: list[tuple[History, float]] = []
    judged = 0
    for gradient in facts.gradients:
        weight = facts.parameter_of(gradient)
        if weight is None or not weight.is_matrix or len(gradient) < 30 or np.any(gradient.bad > 0):
            continue
        sizes = gradient.rms
        apart = np.flatnonzero(np.diff(gradient.steps) > 2)
        row = int(apart[0]) + 1 if apart.size else sizes.size  # number of first values without a gap
        if not np.all(sizes > 0) or row < 30:
            continue
        judged += 1
        changes = np.abs(np.diff(sizes[:row])) / sizes[1:row]
        growth = float(np.max(sizes) / np.median(sizes[:3]))
        doubling = float(sizes[row - 1] / sizes[row // 2])  # 2 for a sum of equal parts
        if np.median(changes[5:]) < 0.08 and growth > 4 and 1.05 < doubling < 3:
            growing.append((gradient, growth))
    if judged and len(growing) >= 0.6 * judged:
        names = [one.name for one, _ in growing]
        yield Evidence(
            why=f"the gradients of {len(growing)} of {judged} weights grow by a factor of up to "
            f"{rounded(max(growth for _, growth in growing))} and change by a few percent "
            "from step to step, like sums over many steps",
            strength=0.88,
            tensors=tuple(names),
            mode=facts.training,
            step=int(growing[0][0].steps[1]),
        )


def stays_in_eval(facts: Facts) -> Iterator[Evidence]:
    """Dropout or normalisation in eval mode while the model trains, or a model that trains in eval mode."""
    names = [
        path
        for path, when in facts.noted(_IN_EVAL).items()
        if when == "always" and not _is_in_frozen_part(facts, path)
    ]
    if names:
        of_model = facts.root in names
        yield Evidence(
            why=("the model" if of_model else ", ".join(names[:3]))
            + f"{' and more' if len(names) > 3 else ''} stays in eval mode while the model is trained",
            strength=0.85,
            tensors=tuple(f"{name}_output_0" for name in names),
            mode=facts.training,
            step=facts.first_step,
        )


def _is_in_frozen_part(facts: Facts, path: str) -> bool:
    """Whether all parameters of a module, or of the module that holds it, are frozen."""
    frozen_names = _names(facts, "frozen")
    every = {name.removeprefix("gradient/") for _, name in (*facts.histories, *facts.absent)}
    for part in (path, path.rpartition(".")[0]):
        inside = {
            name
            for name in every | frozen_names
            if part and (facts.module_of(name) == part or facts.module_of(name).startswith(f"{part}."))
        }
        own = {name for name in inside if name in frozen_names or facts.get(f"gradient/{name}") is not None}
        if own and own <= frozen_names:
            return True
    return False


def updates_in_evaluation(facts: Facts) -> Iterator[Evidence]:
    """Gradients, or weights that change, in EVAL mode."""
    noted = facts.noted(_IN_EVAL)
    if noted.get(facts.root, "always") != "always":
        evaluated = next(facts.of_kind("loss", "output", mode="EVAL"), None)
        yield Evidence(
            why="at some steps of the training, an optimizer steps after a forward pass in eval mode",
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
        together = (np.diff(weight.steps) == 1) & (np.diff(weight.global_steps) == 1)  # no step between them
        changed = (np.diff(weight.mean) != 0) & (np.diff(weight.square_sum) != 0)
        pairs = np.flatnonzero(together)
        again = pairs[1:][changed[pairs][1:] & changed[pairs][:-1]]  # one change: a load of weights
        if again.size:
            at = int(again[0]) + 1
            yield Evidence(
                why=f"{weight.name} changes within an evaluation",
                strength=0.9,
                tensors=(weight.name,),
                mode="EVAL",
                step=int(weight.steps[at]),
            )
            return
