"""A step as text for people: first the step of its mode, as the training loop counts it.

A hook counts each step twice: once over all modes (the global step) and once within its mode. The loop of a
script counts the steps of one mode, so messages have that number first, and the global step in brackets if
the two differ. JSON has both numbers. Pure functions, any thread.
"""

from __future__ import annotations

__all__ = ["step_text"]


def step_text(step: int, mode: str = "", mode_step: int | None = None) -> str:
    """One step in words.

    Args:
        step: global step.
        mode: name of the mode, such as "TRAIN"; "" when it is not known.
        mode_step: step within the mode; None when it is not known.

    Returns:
        "step 40" if both numbers are equal, "TRAIN step 40 (global 55)" or "EVAL step 3 (global 43)" if they
        differ, "EVAL step 3" for equal numbers of another mode than TRAIN, and "global step 55" if the step
        of the mode is unknown.
    """
    if mode_step is None:
        return f"global step {step}"
    same = mode_step == step
    named = mode not in ("", "GLOBAL") and not (same and mode == "TRAIN")
    return f"{mode if named else ''} step {mode_step}".lstrip() + ("" if same else f" (global {step})")
