"""A callback after the first import of a module.

The imported module has the same spec and the same loader as without the callback. A search without an import
(importlib.util.find_spec) does not call the callback. Threads: the importing thread runs the callback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["after_import"]


def after_import(name: str, call: Callable[[], None]) -> None:
    """Call `call` after the first import of the top-level module `name`; immediately if it is imported."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _ImportFinder(name, call))


class _ImportFinder(MetaPathFinder):
    """Finder that searches the module with the other finders and wraps its loader."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, with a wrapped loader; None for any other module."""
        if fullname != self._name:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._loaded)
                return spec  # type: ignore[no-any-return]  # a finder may be anything
        return None

    def _loaded(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._call()


class _Loader(Loader):
    """Wrapper of the module's loader that calls `loaded` after the module was executed."""

    def __init__(self, loader: Any, loaded: Callable[[], None]) -> None:
        self._loader = loader
        self._loaded = loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with its own loader."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module with its own loader, which becomes its only loader again."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._loaded()
