"""The hook for PyTorch. `from tdcore.hooks.pytorch import Hook`.

With TDCORE_DISABLED=1 the names are those of hooks/inert.py, and nothing else is loaded.
"""

from typing import TYPE_CHECKING

from tdcore.settings import disabled

if TYPE_CHECKING or not disabled():
    from tdcore.hooks.pytorch.hook import Hook, create_from_json_file
else:
    from tdcore.hooks.inert import Hook, create_from_json_file

__all__ = ["Hook", "create_from_json_file"]
