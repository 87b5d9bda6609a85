"""The hook for PyTorch. `from tdcore.hooks.pytorch import Hook`."""

from tdcore.hooks.current import del_hook, set_hook
from tdcore.hooks.pytorch.hook import Hook, create_from_json_file, get_hook

__all__ = ["Hook", "create_from_json_file", "del_hook", "get_hook", "set_hook"]
