"""CollectionConfig: the settings of one collection, as a value. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tdcore.config.checks import patterns
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.errors import InvalidCollectionConfiguration
from tdcore.text.short_repr import settings_repr

__all__ = ["CollectionConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionConfig:
    """Settings of one collection, for `hook.add_collection()` and `HookConfig.collections`.

    Args:
        name: Name of the collection.
        include_regex: Patterns that are searched in names of tensors.
        tensor_names: Exact names of tensors.
        module_regex: Patterns that select inputs and outputs by the class of their module. They are searched
            in the name of the class followed by "_input" or "_output". Example: "^ReLU_output".
        save_config: Saved steps; None: the settings of the hook.
        reduction_config: Saved statistics and values; None: the settings of the hook.

    Raises:
        InvalidCollectionConfiguration, ConfigError: A value is invalid.
    """

    name: str
    include_regex: Sequence[str] = ()
    tensor_names: Sequence[str] = ()
    module_regex: Sequence[str] = ()
    save_config: SaveConfig | None = None
    reduction_config: ReductionConfig | None = None

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidCollectionConfiguration(f"a collection needs a name, got {self.name!r}")
        object.__setattr__(self, "include_regex", patterns("include_regex", self.include_regex))
        names = (self.tensor_names,) if isinstance(self.tensor_names, str) else tuple(self.tensor_names or ())
        object.__setattr__(self, "tensor_names", names)
        object.__setattr__(self, "module_regex", patterns("module_regex", self.module_regex))
        if self.save_config is not None:
            object.__setattr__(self, "save_config", SaveConfig.parse(self.save_config))
        if self.reduction_config is not None and not isinstance(self.reduction_config, ReductionConfig):
            raise InvalidCollectionConfiguration(
                f"collection {self.name!r}: reduction_config must be a ReductionConfig, "
                f"got {type(self.reduction_config).__name__}"
            )

    def to_json_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {
            "name": self.name,
            "include_regex": list(self.include_regex),
            "tensor_names": list(self.tensor_names),
            "module_regex": list(self.module_regex),
            "save_config": self.save_config.to_json_dict() if self.save_config else None,
            "reduction_config": self.reduction_config.to_json_dict() if self.reduction_config else None,
        }
