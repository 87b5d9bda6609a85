"""The support matrix, the table in docs/pytorch.md, which is generated from the tests.

    pytest tests -m supports --proofs write     writes the table, and leaves the rest of the page unchanged
    pytest tests --proofs check                 fails when the table does not match the tests

A test declares the cell that it proves with `@pytest.mark.supports("DDP", "values")`. tests/conftest.py loads
this module as a plugin; tests/shown.py counts the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.shown import Cell, Page

__all__ = ["COLUMNS", "DOCS", "GROUPS", "MATRIX", "matrix"]

COLUMNS = ("values", "losses", "breaks", "cost")
GROUPS = {
    "Compiled and captured": (
        "torch.compile, default",
        "torch.compile, fullgraph",
        "torch.compile, max-autotune",
        "make_graphed_callables",
    ),
    "Many processes": (
        "DDP",
        "FSDP2",
        "tensor parallel",
        "FSDP2 over tensor parallel",
        "pipeline",
        "expert parallel",
        "several process groups",
        "torchrun",
        "resume",
    ),
    "Precision and optimizers": (
        "autocast",
        "GradScaler",
        "fused optimizer",
        "foreach optimizer",
        "gradient clipping",
        "gradient accumulation",
        "set_to_none",
        "sparse gradients",
        "optimizer with a closure",
        "several optimizers",
        "optimizer in backward",
        "optimizer state",
        "update ratio",
    ),
    "Shapes of the graph": (
        "reused modules",
        "shared parameters",
        "activation checkpointing, reentrant",
        "activation checkpointing, non-reentrant",
        "in-place activations",
        "frozen parameters",
        "nested outputs",
        "nested and ragged tensors",
        "several root modules",
        "modules that bypass hooks",
        "DataParallel",
        "EMA copies",
        "no_grad and inference_mode",
        "functional_call and vmap",
        "order of execution",
    ),
    "No change to the script": (
        "tdcore run, plain loop",
        "tdcore run, timm-style loop",
        "tdcore run, Hugging Face",
        "Hugging Face Trainer",
        "Lightning",
    ),
}


def matrix(
    mark: str,
    path: Path,
    groups: Mapping[str, tuple[str, ...]],
    columns: tuple[str, ...],
    *,
    keep: bool = False,
) -> Page:
    """Describe a page with one table between two comments: groups of rows, counts of tests in the cells.

    Args:
        keep: Keep the lines of a group if none of its tests ran, because they run in another environment.
    """
    begin = f"<!-- The table, made by the tests: pytest tests -m {mark} --proofs write -->\n"
    end = "<!-- The end of the table. -->\n"

    def text(old: str, passed: Mapping[Cell, int], gpu: Mapping[Cell, int]) -> str:
        """Return the page with a new table; a page without the two comments gets the table at its end."""
        before, found, rest = old.partition(begin)
        table, _, after = rest.partition(end) if found else ("", "", "")
        lines = _table(groups, columns, passed, gpu, _groups_of(table) if keep else {})
        return before + begin + lines + end + after

    rows = {row: row for group in groups.values() for row in group}
    return Page(mark=mark, path=path, rows=rows, columns=columns, text=text)


def _table(
    groups: Mapping[str, tuple[str, ...]],
    columns: tuple[str, ...],
    passed: Mapping[Cell, int],
    gpu: Mapping[Cell, int],
    old: Mapping[str, list[str]],
) -> str:
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for group, rows in groups.items():
        cells = [(row, column) for row in rows for column in columns]
        if group in old and not any(passed.get(cell) or gpu.get(cell) for cell in cells):
            lines += old[group]
            continue
        lines.append(f"| **{group}** |{' |' * len(columns)}")
        for row in rows:
            shown = [_shown(passed.get((row, column), 0), gpu.get((row, column), 0)) for column in columns]
            if not any(shown):
                shown[0] = "not shown"
            lines.append(f"| {row} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _groups_of(table: str) -> dict[str, list[str]]:
    """The lines of each group of a table that was written before."""
    found: dict[str, list[str]] = {}
    group = ""
    for line in table.splitlines():
        if line.startswith("| **"):
            group = line.split("**")[1]
        found.setdefault(group, []).append(line)
    return found


def _shown(passed: int, gpu: int) -> str:
    """Return the text of one cell. Tests that need a GPU are counted separately."""
    return f"{passed or '0'} (+{gpu} on a GPU)" if gpu else str(passed or "")


DOCS = Path(__file__).resolve().parents[2] / "docs"
MATRIX = matrix("supports", DOCS / "pytorch.md", GROUPS, COLUMNS)
