"""ReductionConfig: which statistics of a tensor are saved, and whether its values are saved as well.

Frozen values without side effects, safe in any thread. Names and meanings are those of smdebug's
configuration. An invalid argument raises ConfigError with the valid values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tdcore.config import checks
from tdcore.errors import ConfigError
from tdcore.text.short_repr import settings_repr

__all__ = ["ALLOWED_NORMS", "ALLOWED_REDUCTIONS", "ReductionConfig", "reduction_lists"]

ALLOWED_REDUCTIONS = ("min", "max", "mean", "std", "variance", "sum", "prod")
ALLOWED_NORMS = ("l1", "l2")


@dataclass(frozen=True, slots=True)
class ReductionConfig:
    """Save statistics instead of the whole tensor, or in addition to it.

    The reductions are computed from the statistics that are recorded with every captured tensor, so a shorter
    list saves no work. Only "prod" costs extra work: if the values are not saved, the framework computes
    "prod", which is stored as a separate row, named "<tensor>/prod" or "<tensor>/abs_prod".

    Args:
        reductions: Names such as "mean" or "max".
        abs_reductions: Reductions of the absolute values.
        norms: "l1", "l2".
        abs_norms: Norms of the absolute values.
        save_raw_tensor: Save the values in addition to statistics.
        save_shape: Must be True, because shapes are part of every row.

    Raises:
        ConfigError: A name or value is invalid.
    """

    reductions: Sequence[str] = ()
    abs_reductions: Sequence[str] = ()
    norms: Sequence[str] = ()
    abs_norms: Sequence[str] = ()
    save_raw_tensor: bool = False
    save_shape: bool = True

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        for name, allowed in (
            ("reductions", ALLOWED_REDUCTIONS),
            ("abs_reductions", ALLOWED_REDUCTIONS),
            ("norms", ALLOWED_NORMS),
            ("abs_norms", ALLOWED_NORMS),
        ):
            object.__setattr__(self, name, checks.allowed(name, getattr(self, name), allowed))
        checks.flag("save_raw_tensor", self.save_raw_tensor)
        if self.save_shape is not True:
            raise ConfigError("save_shape=False is not supported: every row has the shape; remove save_shape")

    def to_json_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {
            "reductions": list(self.reductions),
            "abs_reductions": list(self.abs_reductions),
            "norms": list(self.norms),
            "abs_norms": list(self.abs_norms),
            "save_raw_tensor": self.save_raw_tensor,
        }

    def to_json(self) -> str:
        """Return to_json_dict() as JSON text."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> ReductionConfig:
        """Create an object from the result of to_json_dict(), of tdcore or of smdebug. Raises ConfigError.

        "reductions" may be a list, or names with commas between them. Names such as "abs_mean", "l2_norm" and
        "abs_l2_norm" belong to the other three lists.
        """
        lists = ("reductions", "abs_reductions", "norms", "abs_norms")
        checks.known_names("ReductionConfig", params, (*lists, "save_raw_tensor", "save_shape"))
        found = reduction_lists(params.get("reductions"))
        for name in lists[1:]:
            found[name] = [*found[name], *checks.names(name, params.get(name))]
        return cls(save_raw_tensor=params.get("save_raw_tensor", False), **found)

    @classmethod
    def from_json(cls, json_str: str) -> ReductionConfig:
        """Create an object from the text of to_json(). Raises ConfigError."""
        return cls.from_dict(checks.json_object("ReductionConfig", json_str))


def reduction_lists(names: str | Iterable[str] | None) -> dict[str, Any]:
    """Names such as "mean", "abs_max", "l2_norm" and "abs_l1_norm", as the four lists of ReductionConfig.

    names: a list, or text with commas between them. Raises ConfigError.
    """
    groups: dict[str, list[str]] = {"reductions": [], "abs_reductions": [], "norms": [], "abs_norms": []}
    listed = names.split(",") if isinstance(names, str) else names or ()
    for name in filter(None, (str(each).strip() for each in listed)):
        prefix, plain = ("abs_", name[4:]) if name.startswith("abs_") else ("", name)
        if plain.endswith("_norm") and plain[:-5] in ALLOWED_NORMS:
            groups[f"{prefix}norms"].append(plain[:-5])
        elif plain in ALLOWED_REDUCTIONS:
            groups[f"{prefix}reductions"].append(plain)
        else:
            allowed = ", ".join((*ALLOWED_REDUCTIONS, *(f"{norm}_norm" for norm in ALLOWED_NORMS)))
            raise ConfigError(f"reductions can be {allowed}, each also with the prefix abs_; got {name!r}")
    return groups
