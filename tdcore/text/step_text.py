"""A step as text for people: first the step of its mode, as the training loop counts it.

A hook counts each step twice: once over all modes (the global step) and once within its mode. The loop of a
script counts the steps of one mode, so messages begin with that number. The global step follows in brackets
if the two numbers differ. JSON has both numbers. Pure functions, any thread.
"""

from __future__ import annotations

__all__ = ["SYSTEM_SAMPLES", "step_text"]

SYSTEM_SAMPLES = "SYSTEM"  # in place of a mode: the step is the number of a system sample


def step_text(step: int, mode: str = "", mode_step: int | None = None, epoch: int | None = None) -> str:
    """One step in words.

    Args:
        step: Global step.
        mode: Name of the mode, such as "TRAIN"; "" if it is not known.
        mode_step: Step within the mode; None if it is not known.
        epoch: Epoch of the step; None if it is not known.

    Returns:
        "step 40" if both numbers are equal, "TRAIN step 40 (global 55)" or "EVAL step 3 (global 43)" if they
        differ, "EVAL step 3" for equal numbers of a mode other than TRAIN, and "global step 55" if the step
        of the mode is not known. With an epoch: "step 40 (epoch 2)", "TRAIN step 40 (epoch 2, global 55)".
        "sample 40" for the number of a system sample, whose mode is SYSTEM_SAMPLES.
    """
    if mode == SYSTEM_SAMPLES:
        return f"sample {step}"
    same = mode_step is None or mode_step == step
    named = mode not in ("", "GLOBAL") and not (same and mode == "TRAIN")
    text = f"{mode if named else ''} step {mode_step}".lstrip()
    if mode_step is None:
        text = f"global step {step}"
    more = ([] if epoch is None else [f"epoch {epoch}"]) + ([] if same else [f"global {step}"])
    return f"{text} ({', '.join(more)})" if more else text
