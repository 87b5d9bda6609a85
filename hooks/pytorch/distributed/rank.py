"""Rank and world size of this process. Threads: any; never communicates."""

from __future__ import annotations

import os

import torch

__all__ = ["rank_and_world_size", "rank_mismatch_message"]


def rank_and_world_size() -> tuple[int, int]:
    """Rank and world size, from torch.distributed if it is initialized, else from torchrun's variables."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


def rank_mismatch_message(place: tuple[int, int]) -> str | None:
    """Return a warning if the hook was created before the job began, with another rank; else None."""
    now = rank_and_world_size()
    if now == place:
        return None
    return (
        f"the hook was created as rank {place[0]} of {place[1]}, but this process is now rank {now[0]} of "
        f"{now[1]}: create the hook after torch.distributed.init_process_group()"
    )
