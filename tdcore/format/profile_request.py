"""ProfileRequest: a request to a running training to profile its next steps.

The request is a document in the numbered files control/capture-<attempt>-<number>.json with the kind
"profile" (format/control.py). A version of tdcore without profiles refuses the document, because it names
no tensors. Plain values; any thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tdcore.errors import ConfigError
from tdcore.format.control import MAX_NAMES, MAX_TEXT, PROFILE_KIND, check_steps, texts_of
from tdcore.format.layout import FORMAT_VERSION, valid_worker

__all__ = ["ProfileRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """Profile the next `steps` training steps.

    Attributes:
        steps: Number of training steps, from the step at which a worker reads the request.
        operators: Record the operators with torch.profiler.
        python: Record the Python functions with cProfile.
        workers: Names of the workers that record; empty: all workers that capture.
        by, reason: Text for people.

    Raises:
        ConfigError: A value is invalid.
    """

    steps: int
    operators: bool = True
    python: bool = False
    workers: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        check_steps(self.steps)
        for name in ("operators", "python"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r:.80}")
        if not (self.operators or self.python):
            raise ConfigError("operators and python are both false; request at least one of them")
        if len(self.workers) > MAX_NAMES:
            raise ConfigError(f"a request names at most {MAX_NAMES} workers, got {len(self.workers)}")
        wrong = [worker for worker in self.workers if not valid_worker(worker)]
        if wrong:
            raise ConfigError(f"workers must be names such as 'worker_0', got {wrong[0]!r:.80}")

    def document(self, *, attempt: int) -> bytes:
        """Content of the file."""
        return json.dumps(
            {
                "format": FORMAT_VERSION,
                "attempt": attempt,
                "kind": PROFILE_KIND,
                "steps": self.steps,
                "operators": self.operators,
                "python": self.python,
                "workers": list(self.workers),
                "by": self.by[:MAX_TEXT],
                "reason": self.reason[:MAX_TEXT],
            }
        ).encode()

    @classmethod
    def from_object(cls, raw: dict[str, Any]) -> ProfileRequest:
        """Check an object from format/control.py: request_object(). Raises ConfigError."""
        return cls(
            steps=raw.get("steps", 0),
            operators=raw.get("operators", True),
            python=raw.get("python", False),
            workers=texts_of(raw, "workers"),
            by=str(raw.get("by") or "")[:MAX_TEXT],
            reason=str(raw.get("reason") or "")[:MAX_TEXT],
        )
