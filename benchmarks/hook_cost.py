"""Cost of a step without a save, and cost per small tensor of a saved step.

CPU time of the training thread in microseconds, on which other processes have little effect. Short rounds
alternate, so that a slow second of the machine affects both sides. Reported are the median of the differences
of neighbouring rounds, with quartiles, and the difference of the two fastest rounds.

unsaved         steps of a model of one tiny layer, with the hook and without its three PyTorch hooks
parameters      150 layers of 16 x 16, statistics of weights, biases and gradients: a saved step minus the
                unsaved step after it, divided by the number of tensors
outputs         the same layers, statistics of every output: per call with a hook, including PyTorch's own
                cost of such a call
native, python  times of the fastest step by the clocks of the core and of the hook: inside the native
                calls, and inside the hook around these calls
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.optim import optimizer as optimizers

import tdcore as td
from benchmarks.environment import ROOT, add_out, save
from tdcore.hooks.pytorch import Hook

NEVER = td.SaveConfig(start_step=1 << 40)
LOOP, LAYERS, WIDTH = 200, 150, 16
Result = dict[str, float]


class Still(torch.optim.Optimizer):
    """An optimizer that changes no parameter, so that a step consists mostly of its hooks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        pass


@contextmanager
def taken_off(*held: dict[int, object]) -> Iterator[None]:
    """Empty the dictionaries of hooks within the block."""
    kept = [dict(one) for one in held]
    for one in held:
        one.clear()
    yield
    for one, entries in zip(held, kept, strict=True):
        one.update(entries)


def summary(name: str, more: list[float], less: list[float], per: float = 1) -> Result:
    """Summary of the differences of two lists of times in microseconds, divided by `per`."""
    differences = [(one - two) / per for one, two in zip(more, less, strict=True)]
    low, median, high = statistics.quantiles(differences, n=4)
    return {
        name: median,
        f"{name}_q1": low,
        f"{name}_q3": high,
        f"{name}_fastest": (min(more) - min(less)) / per,
    }


def unsaved(folder: Path, rounds: int) -> Result:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer, x = Still(model), torch.randn(1, 4)

    def round_time() -> float:
        start = time.thread_time_ns()
        for _ in range(LOOP):
            model(x)
            optimizer.step()
        return (time.thread_time_ns() - start) / 1e3 / LOOP

    with Hook(folder / "never", save_config=NEVER) as hook, torch.no_grad():
        hook.register_module(model)
        hooks = (
            model._forward_pre_hooks,
            model._forward_pre_hooks_with_kwargs,
            optimizers._global_optimizer_pre_hooks,
            optimizers._global_optimizer_post_hooks,
        )
        hooked, plain = [], []
        round_time()
        for _ in range(rounds):
            hooked.append(round_time())
            with taken_off(*hooks):  # type: ignore[arg-type]  # ordered dictionaries
                plain.append(round_time())
    return summary("unsaved", hooked, plain)


def saved(folder: Path, what: str, include: list[str], rounds: int) -> Result:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer, x = Still(model), torch.randn(1, WIDTH)
    model(x).square().mean().backward()

    def step_time() -> float:
        start = time.thread_time_ns()
        model(x)
        optimizer.step()
        return (time.thread_time_ns() - start) / 1e3

    with Hook(
        folder / what,
        save_config=td.SaveConfig(save_interval=2),
        include_collections=include,
        reduction_config=td.ReductionConfig(),
    ) as hook:
        hook.register_module(model)
        for _ in range(6):
            step_time()
        times, natives, pythons = [], [], []
        first = hook.counters()
        for _ in range(rounds):
            before, spent = hook.counters(), hook.time_spent()
            times.append((step_time(), step_time()))
            native = (hook.counters().capture_ns - before.capture_ns) / 1e3
            natives.append(native)
            pythons.append((hook.time_spent() - spent).total_seconds() * 1e6 - native)
        tensors = (hook.counters().tensors - first.tensors) / rounds
    return {
        f"{what}_tensors_per_saved_step": tensors,
        **summary(f"{what}_per_tensor", [one for one, _ in times], [two for _, two in times], tensors),
        f"{what}_native_per_tensor": min(natives) / tensors,
        f"{what}_python_per_tensor": min(pythons) / tensors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=400, help="number of rounds of each kind (default: %(default)s)"
    )
    add_out(parser)
    options = parser.parse_args()
    rounds: int = options.rounds
    torch.set_num_threads(1)
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = Path(name)
        result = unsaved(folder, rounds)
        result |= saved(folder, "parameters", ["weights", "biases", "gradients"], rounds)
        result |= saved(folder, "outputs", ["outputs"], rounds)
    for key, value in result.items():
        print(f"{key:36} {value:.4g}")
    document = {"method": __doc__, "rounds": rounds, **result}
    print("saved", save("hook_cost", document, options.out))


if __name__ == "__main__":
    main()
