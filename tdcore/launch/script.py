"""Run a Python script or module as `python train.py` and `python -m package.module` run it.

`Script.run()` makes the script the program: it has its own `__main__` module, sys.argv and sys.path[0]. Every
exception of the script, also SystemExit, reaches the interpreter, which ends the process as usual. Only the
lines of tdcore in the printed traceback are removed. Threads: the main thread.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType

from tdcore.errors import ConfigError
from tdcore.launch import import_watch

__all__ = ["Script"]

Explain = Callable[[BaseException], str | None]
_OURS = frozenset({__file__, import_watch.__file__})


class Script:
    """A script. target: a path, or with `module` a dotted name. arguments: those of the script."""

    def __init__(self, target: str, arguments: Sequence[str] = (), *, module: bool = False) -> None:
        self._target = target
        self._arguments = list(arguments)
        self._module = module
        if not module and not os.path.isfile(target):
            kind = "is a folder, not a script" if os.path.isdir(target) else "No such file"
            raise ConfigError(f"can't open {os.path.abspath(target)!r}: {kind}")

    def run(self, explain: Explain | None = None) -> None:
        """Run the script to its end. explain: returns a message to print instead of a traceback, or None."""
        try:
            self._run()
        except BaseException:
            # Set only after the script has ended, so that the script never finds this hook.
            sys.excepthook = _Printer(sys.excepthook, explain)
            raise

    def _run(self) -> None:
        sys.argv = [self._target, *self._arguments]
        code, main = self._from_name() if self._module else self._from_path()
        main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
        _KEPT.append(sys.modules["__main__"])
        sys.modules["__main__"] = main
        exec(code, main.__dict__)

    def _from_path(self) -> tuple[CodeType, ModuleType]:
        path = os.path.abspath(self._target)
        _first_on_path(os.path.dirname(os.path.realpath(path)))
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        main = ModuleType("__main__")
        main.__loader__ = SourceFileLoader("__main__", path)
        main.__dict__.update(__file__=path, __cached__=None)
        return code, main

    def _from_name(self) -> tuple[CodeType, ModuleType]:
        _first_on_path(os.getcwd())
        sys.argv[0] = "-m"  # during the search, as in the interpreter
        spec = _find(self._target)
        loader = spec.loader
        code: CodeType | None = loader.get_code(spec.name) if loader is not None else None  # type: ignore[attr-defined]  # _find reports a missing method
        if code is None:
            raise _no_module(f"No code object available for {self._target}")
        sys.argv[0] = spec.origin or self._target
        main = ModuleType("__main__")
        main.__spec__, main.__loader__, main.__package__ = spec, loader, spec.parent
        main.__dict__.update(__file__=spec.origin, __cached__=spec.cached)
        return code, main


_KEPT: list[ModuleType] = []  # the interpreter's own __main__, whose code is still running


def _first_on_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _find(name: str) -> ModuleSpec:
    """The module, or the __main__ of the package. Errors have the interpreter's messages."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _no_module(f"No module named {name}") from None
        raise
    if spec is None:
        raise _no_module(f"No module named {name}")
    if spec.submodule_search_locations is not None:
        return _find(f"{name}.__main__")
    if not hasattr(spec.loader, "get_code"):
        raise _no_module(f"No code object available for {name}")
    return spec


def _no_module(what: str) -> SystemExit:
    return SystemExit(f"{sys.executable}: {what}")


class _Printer:
    """Excepthook that removes lines of tdcore from one traceback and calls the previous hook."""

    def __init__(self, printer: Callable[..., object], explain: Explain | None) -> None:
        self._printer = printer
        self._explain = explain

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Print the exception and restore the previous hook."""
        sys.excepthook = self._printer
        own = self._printer is not sys.__excepthook__  # a hook of the script decides what is printed
        text = self._explain(error) if self._explain is not None and not own else None
        if text is not None:
            print(text, file=sys.stderr)
            return
        rest = _without_ours(trace)
        self._printer(kind, error.with_traceback(rest), rest)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The frames after the frame that runs the script, without the frames of import_watch.py."""
    while trace is not None and trace.tb_frame.f_code is not Script._run.__code__:
        trace = trace.tb_next
    frames: list[TracebackType] = []
    trace = trace.tb_next if trace is not None else None
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    names = [frame.tb_frame.f_code.co_filename for frame in frames]
    if not _OURS.isdisjoint(names):
        frames = [
            frame
            for frame, name in zip(frames, names, strict=True)
            if name not in _OURS and not name.startswith("<frozen importlib")
        ]
        for frame, following in itertools.zip_longest(frames, frames[1:]):
            frame.tb_next = following
    return frames[0] if frames else None
