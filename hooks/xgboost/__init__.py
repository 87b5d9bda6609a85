"""The hook for XGBoost. `from tdcore.hooks.xgboost import Hook`.

    hook.py       Hook: a callback for train(), cv() and the estimators of scikit-learn's interface
    callback.py   HookCallback: creates the hook when the training begins, for dask and other processes
    model.py      reads a Booster
    metrics.py    metrics of a round, and which of them are losses

With TDCORE_DISABLED=1 the callbacks do nothing.
"""

from tdcore.hooks.current import del_hook, set_hook
from tdcore.hooks.xgboost.callback import HookCallback
from tdcore.hooks.xgboost.hook import Hook, create_from_json_file, get_hook

__all__ = ["Hook", "HookCallback", "create_from_json_file", "del_hook", "get_hook", "set_hook"]
