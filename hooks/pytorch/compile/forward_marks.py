"""A module's own `forward`: the attribute that selects between compiled code with and without module hooks.

torch.compile guards compiled code against a `forward` in the dictionary of a module. A mark is such a
`forward`; it computes the same values. Pickles, copies and replicas (nn.DataParallel) of the module do not
contain the mark, because the pickle reduction of the module's class and one private function of nn.Module are
extended.
Threads: those of the training.
"""

from __future__ import annotations

import copyreg
import functools
import weakref
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

from torch import nn

__all__ = ["put_mark", "take_mark", "wrap_forward"]

_KEY = "forward"
_marks: weakref.WeakValueDictionary[int, Callable[..., Any]] = weakref.WeakValueDictionary()  # by id()


def put_mark(module: nn.Module) -> Callable[..., Any] | None:
    """Put a mark on the module and return it; None if the module's forward is not a plain method."""
    patched = module.__dict__.get(_KEY)
    forward = _method_of(module) if patched is None else _through(patched)
    if forward is not None:
        _leave_out_of_pickles(type(module))
        _leave_out_of_replicas()
        _marks[id(forward)] = forward
        module.__dict__[_KEY] = forward
    return forward


def take_mark(attributes: dict[str, Any], mark: Callable[..., Any]) -> None:
    """Remove the mark from the dictionary of its module, if it is still there."""
    if attributes.get(_KEY) is mark:
        _restore(attributes, mark)


def wrap_forward(module: nn.Module) -> Callable[[], None]:
    """Stop the use of code that was compiled for the module so far. Return a function that undoes this.

    The returned function keeps neither the module nor its forward alive, so a hook that is never closed is
    deleted with the model.
    """
    mark = put_mark(module)
    return _nothing if mark is None else partial(_unwrap_forward, weakref.ref(module), weakref.ref(mark))


def _unwrap_forward(module_ref: weakref.ref[nn.Module], mark_ref: weakref.ref[Callable[..., Any]]) -> None:
    module, mark = module_ref(), mark_ref()
    if module is not None and mark is not None:
        take_mark(module.__dict__, mark)


def _method_of(module: nn.Module) -> Callable[..., Any] | None:
    forward: Any = getattr(module, _KEY, None)
    return forward if type(forward) is MethodType and forward.__self__ is module else None


def _through(forward: Callable[..., Any]) -> Callable[..., Any]:
    def through(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    through.__wrapped__ = forward  # type: ignore[attr-defined]
    return through


def _restore(attributes: dict[str, Any], mark: Callable[..., Any]) -> None:
    """Restore the attribute that the mark replaced."""
    if type(mark) is MethodType:
        del attributes[_KEY]
    else:
        attributes[_KEY] = mark.__wrapped__  # type: ignore[attr-defined]  # of _through()


def _is_mark(forward: object) -> bool:
    return forward is not None and _marks.get(id(forward)) is forward


def _leave_out_of_pickles(kind: type[nn.Module]) -> None:
    """Extend the pickle reduction of a class until the process ends. A second call has no effect."""
    known = copyreg.dispatch_table.get(kind)
    if not isinstance(known, _Reduction):
        copyreg.pickle(kind, _Reduction(known))


class _Reduction:
    """Reduction function for pickles of modules without marks. known: the function of the class, if any."""

    __slots__ = ("_known",)

    def __init__(self, known: Callable[[Any], Any] | None) -> None:
        self._known = known

    def __call__(self, module: nn.Module) -> Any:
        reduced = module.__reduce_ex__(_PROTOCOL) if self._known is None else self._known(module)
        if not isinstance(reduced, tuple) or len(reduced) < _STATE + 1:
            return reduced
        state = reduced[_STATE]
        inner = state[0] if isinstance(state, tuple) and state else state  # state of a class with __slots__
        if type(inner) is not dict or not _is_mark(inner.get(_KEY)):
            return reduced
        left = dict(inner)
        _take_all(left)
        state = (left, *state[1:]) if isinstance(state, tuple) else left
        return (*reduced[:_STATE], state, *reduced[_STATE + 1 :])


def _leave_out_of_replicas() -> None:
    """Extend the function that creates DataParallel's replicas, until the process ends.

    A replica gets a copy of the module's dictionary. A mark in this copy would call the module itself, whose
    parameters are on another device. A second call has no effect.
    """
    make_replica = getattr(nn.Module, _REPLICATE, None)
    if not callable(make_replica) or hasattr(make_replica, "__wrapped__"):
        return

    @functools.wraps(make_replica)
    def make_without_marks(module: nn.Module) -> Any:
        replica = make_replica(module)
        _take_all(replica.__dict__)
        return replica

    setattr(nn.Module, _REPLICATE, make_without_marks)


def _take_all(attributes: dict[str, Any]) -> None:
    while _is_mark(attributes.get(_KEY)):
        _restore(attributes, attributes[_KEY])


def _nothing() -> None:
    return None


_PROTOCOL = 4  # the protocol of copy.deepcopy(); reductions are equal in all protocols from 2 on
_STATE = 2  # position of the state in a reduction
_REPLICATE = "_replicate_for_data_parallel"
