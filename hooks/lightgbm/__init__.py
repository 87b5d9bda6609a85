"""The hook for LightGBM. `from tdcore.hooks.lightgbm import Hook`.

    hook.py     Hook: a callback for train(), cv() and the estimators of scikit-learn's interface
    callback.py HookCallback: for workers of dask and other processes
    model.py    reads a Booster

With TDCORE_DISABLED=1 the callback does nothing.
"""

from tdcore.hooks.current import del_hook, set_hook
from tdcore.hooks.lightgbm.callback import HookCallback
from tdcore.hooks.lightgbm.hook import Hook, create_from_json_file, get_hook

__all__ = ["Hook", "HookCallback", "create_from_json_file", "del_hook", "get_hook", "set_hook"]
