"""Requests in the control folder to capture more for some steps. Independent of the framework.

Each request to capture tensors adds a collection, "capture_more/<number>", which is saved at every step until
the requested number of steps is reached. A request to profile steps is passed to profile_windows.py. Each
request and its result are in collections.json under "capture_requests".
Threads: apply() by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tdcore.config.collection import Collection
from tdcore.config.collection_manager import CollectionManager
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.format.control import PROFILE_KIND, CaptureRequest, request_object
from tdcore.format.profile_request import ProfileRequest
from tdcore.hooks.clock import Clock
from tdcore.hooks.plan import NameTable
from tdcore.modes import ModeKeys

__all__ = ["REQUESTED", "CaptureRequests"]

REQUESTED = "capture_more/"  # prefix of the name of a request's collection


class CaptureRequests:
    """Requests that are applied to a hook's collections from the next step on.

    Args:
        collections: Collections of the hook.
        clock: Clock of the hook.
        names: Names of the hook.
        notes: Notes of the run; each request is stored there.
        profile: Called with the number of a request to profile steps and the request. Returns the note about
            the request.
    """

    def __init__(
        self,
        collections: CollectionManager,
        clock: Clock,
        names: NameTable,
        notes: dict[str, Any],
        profile: Callable[[int, ProfileRequest], dict[str, Any]],
    ) -> None:
        self._collections = collections
        self._clock = clock
        self._names = names
        self._notes = notes
        self._profile = profile
        self._number = 0  # number of the next request; requests arrive in order, each once

    def apply(self, text: str) -> None:
        """Apply a request. An invalid request is noted and ignored. text: the request as JSON."""
        number, self._number = self._number, self._number + 1
        note: dict[str, Any] = {"number": number}
        try:
            raw = request_object(text)
            if raw.get("kind") == PROFILE_KIND:
                note |= self._profile(number, ProfileRequest.from_object(raw))
            else:
                note |= self._begin(f"{REQUESTED}{number}", CaptureRequest.from_object(raw))
        except ConfigError as error:
            note["ignored"] = str(error)
        self._notes.setdefault("capture_requests", []).append(note)
        self._names.changed = True

    def _begin(self, name: str, request: CaptureRequest) -> dict[str, Any]:
        """Save the request's tensors from the next step on. Return the note about the request."""
        modes = {mode: self._window(mode, request) for mode in ModeKeys}
        self._collections.add(
            Collection(
                name,
                tensor_names=request.tensors,
                save_config=SaveConfig(mode_save_configs=modes),
                reduction_config=ReductionConfig(save_raw_tensor=request.level == "values"),
            )
        )
        self._clock.include(name)
        return {
            "collection": name,
            "tensors": list(request.tensors),
            "level": request.level,
            "steps": {
                mode.name: [window.start_step, window.end_step]
                for mode, window in modes.items()
                if window.end_step
            },
            "by": request.by,
            "reason": request.reason,
        }

    def _window(self, mode: ModeKeys, request: CaptureRequest) -> SaveConfigMode:
        """The next steps of the mode; no steps if the request does not name the mode."""
        if request.modes and mode.name not in request.modes:
            return SaveConfigMode(end_step=0)
        begin = self._clock.mode_steps[mode.value] + 1
        return SaveConfigMode(save_interval=1, start_step=begin, end_step=begin + request.steps)
