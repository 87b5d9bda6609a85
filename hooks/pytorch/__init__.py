"""The hook for PyTorch. `from tdcore.hooks.pytorch import Hook`."""

from tdcore.hooks.pytorch.hook import Hook, create_from_json_file

__all__ = ["Hook", "create_from_json_file"]
