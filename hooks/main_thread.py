"""A call of a function in the main thread, between two instructions of its Python code.

Threads: any.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

__all__ = ["call_in_main_thread"]

_log = logging.getLogger("tdcore")
_Function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_functions: list[Any] = []  # Python may call them at any later time


def call_in_main_thread(call: Callable[[], None]) -> None:
    """Have the main thread call the function soon. An exception of the function is logged."""

    calls = [call]  # emptied by the call, because the native function is kept

    def run(_: object) -> int:
        try:
            calls.pop()()
        except Exception as error:
            _log.debug("tdcore: a call in the main thread failed", exc_info=error)
        return 0

    function = _Function(run)
    _functions.append(function)
    ctypes.pythonapi.Py_AddPendingCall(function, None)
