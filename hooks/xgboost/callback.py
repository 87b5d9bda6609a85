"""HookCallback: callback that creates the hook when the training begins, and closes it at the end.

    from tdcore.hooks.xgboost import HookCallback

    xgboost.dask.train(client, params, dtrain, callbacks=[HookCallback("runs/demo", include_workers="all")])

The callback can be sent to other processes, the workers of dask or joblib. Each process creates its own hook,
with its rank. Threads: the training thread.
"""

from __future__ import annotations

import os
from typing import Any

from xgboost.callback import TrainingCallback

from tdcore.hooks.xgboost.hook import Hook

__all__ = ["HookCallback"]


class HookCallback(TrainingCallback):  # type: ignore[misc]  # the library is not installed everywhere
    """Callback that captures one training per worker.

    Args:
        out_dir: Local folder or URL of the run.
        options: Further arguments of tdcore.hooks.xgboost.Hook. They must be picklable if the training runs
            in other processes: pass a pair of arrays, because a DMatrix is not picklable.
    """

    def __init__(self, out_dir: str | os.PathLike[str], **options: Any) -> None:
        self._out_dir = os.fspath(out_dir)
        self._options = options
        self.hook: Hook | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "hook": None}

    def before_training(self, model: Any) -> Any:
        """Create the hook."""
        if self.hook is not None:
            self.hook.close()
        self.hook = Hook(self._out_dir, **self._options)
        return self.hook.before_training(model)

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Return whether the training ends."""
        return self.hook is not None and self.hook.before_iteration(model, epoch, evals_log)

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Record the round."""
        return self.hook is not None and self.hook.after_iteration(model, epoch, evals_log)

    def after_training(self, model: Any) -> Any:
        """Close the hook."""
        if self.hook is not None:
            model = self.hook.after_training(model)
            self.hook.close()
        return model
