"""Detection of traced forwards: torch.jit.trace, make_fx, torch.fx, fake tensors, torch.export.

The inputs of a traced forward have no values, or only serve to build a graph. A traced forward belongs to no
step, and none of its tensors is recorded. Hooks read `dispatch_modes()`, `tracing_state()` and `symbolic`
first, which are cheap, and call is_traced() when one of them is set. A real forward under another dispatch
mode (for example FlopCounterMode) is not traced.

All names except torch.compiler.is_exporting are private to torch. If torch lacks them, a traced forward
counts as a real forward. Threads: any; the state is that of the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import _python_dispatch

from tdcore.hooks.pytorch.model.introspection import isinstance_if_imported

__all__ = ["dispatch_modes", "graph_task", "is_exporting", "is_traced", "symbolic", "tracing_state"]

# Number of dispatch modes of this thread.
dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
# Tracing state of torch.jit.trace; None if it traces nothing.
tracing_state: Callable[[], object] = getattr(torch._C, "_get_tracing_state", lambda: None)
# symbolic._is_fx_tracing_flag: whether torch.fx traces in any thread.
symbolic: Any = getattr(torch.fx, "_symbolic_trace", None)
if not hasattr(symbolic, "_is_fx_tracing_flag"):
    symbolic = SimpleNamespace(_is_fx_tracing_flag=False)

# Whether torch.export traces, strictly or not.
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)

# Returns the id of the running backward of this thread, or -1. None if torch has no such function.
graph_task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)

_modes: Callable[[], Iterable[object]] = getattr(
    _python_dispatch, "_get_current_dispatch_mode_stack", lambda: ()
)
_TRACING_MODES = (
    ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    ("torch.fx.experimental.proxy_tensor", "ProxyTorchDispatchMode"),
)


def is_traced(args: Iterable[object] | None = (), kwargs: Mapping[str, object] | None = None) -> bool:
    """Whether a call of a module with these arguments is traced instead of run."""
    if tracing_state() is not None:
        return True
    if any(isinstance_if_imported(mode, *kind) for mode in _modes() for kind in _TRACING_MODES):
        return True
    # torch.fx reports only that some thread traces; the arguments of a traced forward are proxies.
    given = (*(args or ()), *(kwargs or {}).values())
    return bool(symbolic._is_fx_tracing_flag) and any(isinstance(one, torch.fx.Proxy) for one in given)
