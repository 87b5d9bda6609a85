"""One line of `tdcore doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check"]

State = Literal["ok", "missing", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check of this machine.

    needed: whether capture requires the checked function. advice: what to do, unless the state is "ok".
    """

    name: str
    state: State
    detail: str
    needed: bool = False
    advice: str = ""
