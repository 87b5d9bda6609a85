"""Sharding of the tensors of a run over its workers, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["sharding_texts"]


def sharding_texts(trial: Trial, regex_or_names: str | Iterable[str] | None) -> dict[str, str]:
    """Tensor -> "4 parts on 4 workers", "replicated on 2 workers" or "sum over 2 workers".

    The newest shard of each worker is used. Tensors that are neither sharded nor replicated are left out.
    """
    parts = trial.newest_shards(regex_or_names, columns=["name", "shape", "shard"]).to_pylist()
    by_name: dict[str, list[tuple[str, str | None, bool]]] = {}
    for row in parts:
        shard = row["shard"]
        box = f"{shard['offset']} {row['shape']}"
        by_name.setdefault(row["name"], []).append(
            (box, shard["partial"], row["shape"] == shard["global_shape"])
        )
    return {name: _text(each) for name, each in by_name.items()}


def _text(parts: list[tuple[str, str | None, bool]]) -> str:
    """Text for one tensor. parts: for each worker, place, reduction, and whether it has the whole tensor."""
    from tdcore.trial.shard_boxes import COPY_OF

    workers = f"{len(parts)} worker" + ("" if len(parts) == 1 else "s")
    partial = next((partial.removeprefix(COPY_OF) for _, partial, _ in parts if partial), None)
    if partial is not None:
        return f"{partial} over {workers}"
    if all(is_whole for _, _, is_whole in parts):
        return f"replicated on {workers}"
    boxes = len({box for box, _, _ in parts})
    return f"{boxes} part{'' if boxes == 1 else 's'} on {workers}"
