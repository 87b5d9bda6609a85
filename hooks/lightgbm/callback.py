"""HookCallback: creates the hook when the training begins, and closes it when the training ends.

    from tdcore.hooks.lightgbm import HookCallback

    DaskLGBMClassifier().fit(x, y, callbacks=[HookCallback("runs/demo", include_workers="all")])

The callback can be sent to other processes: the workers of dask, and those of joblib. Each process creates a
hook of its own, with its rank. LightGBM calls no callback after a training, so a training that stops early is
closed when the callback is deleted, or at the end of the process. Threads: the training thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import psutil

from tdcore.hooks.lightgbm.hook import ORDER, Hook

__all__ = ["HookCallback"]


class HookCallback:
    """Captures one training per worker.

    Args:
        out_dir: Local folder or URL of the run.
        options: Further arguments of tdcore.hooks.lightgbm.Hook. They must be picklable if the training runs
            in other processes.
    """

    order = ORDER  # read by LightGBM
    before_iteration = False  # read by LightGBM

    def __init__(self, out_dir: str | os.PathLike[str], **options: Any) -> None:
        self._out_dir = os.fspath(out_dir)
        self._options = options
        self.hook: Hook | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "hook": None}

    def __call__(self, env: Any) -> None:
        """Record the round, with a hook that the first round creates and the last round closes."""
        if env.iteration == env.begin_iteration:
            self._close()
            rank, world_size = rank_and_world_size(env.params)
            self.hook = Hook(self._out_dir, rank=rank, world_size=world_size, **self._options)
        if self.hook is not None:
            self.hook(env)
        if env.iteration + 1 == env.end_iteration:
            self._close()

    def __del__(self) -> None:
        """Close the hook of a training that stopped early."""
        if "hook" in self.__dict__:
            self._close()

    def _close(self) -> None:
        if self.hook is not None:
            self.hook.close()


def rank_and_world_size(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """Rank of this worker and number of workers, from the parameters of a training.

    The rank is the position of this worker in `machines`, a text such as "10.0.0.1:12400,10.0.0.2:12400",
    by its port and, if several workers use this port, by the addresses of this host.
    """
    machines = [each for each in str(parameters.get("machines") or "").split(",") if each]
    if len(machines) < 2:
        return 0, 1
    port = str(parameters.get("local_listen_port"))
    mine = [rank for rank, each in enumerate(machines) if each.rpartition(":")[2] == port]
    if len(mine) > 1:
        here = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
        mine = [rank for rank in mine if machines[rank].rpartition(":")[0] in here]
    return (mine[0] if mine else 0), len(machines)
