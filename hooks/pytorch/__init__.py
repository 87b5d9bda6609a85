"""The hook for PyTorch. `from tdcore.hooks.pytorch import Hook`.

With TDCORE_DISABLED=1 the names are those of hooks/inert.py, and nothing else is loaded.
"""

from typing import TYPE_CHECKING

from tdcore.config.settings import disabled

if TYPE_CHECKING or not disabled():
    from tdcore.hooks.current import del_hook, set_hook
    from tdcore.hooks.pytorch.hook import Hook, create_from_json_file, get_hook
else:
    from tdcore.hooks.inert import Hook, create_from_json_file, del_hook, get_hook, set_hook

__all__ = ["Hook", "create_from_json_file", "del_hook", "get_hook", "set_hook"]
