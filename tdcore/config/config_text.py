"""Parser of configuration files, YAML or JSON, into plain values. Keeps no state; any thread."""

from __future__ import annotations

import json
from typing import Any

from tdcore.errors import ConfigError

__all__ = ["parse_config_text"]


def parse_config_text(text: str, *, as_json: bool) -> object:
    """Parse the document. A repeated key is an error: one of the two values would be lost.

    Raises ConfigError.
    """
    if as_json:
        try:
            return json.loads(text, object_pairs_hook=_unique)
        except ValueError as error:
            raise ConfigError(f"not JSON: {error}") from error
    import yaml

    class Loader(yaml.SafeLoader):
        """Plain values only."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[object] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise ConfigError(f"line {key.start_mark.line + 1}: {key.value!r} is given twice")
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ConfigError(f"{next(n for n in names if names.count(n) > 1)!r} is given twice")
    return found
