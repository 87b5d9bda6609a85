"""SaveConfig and SaveConfigMode: at which steps tensors are saved.

Frozen values without side effects, safe in any thread. Names and meanings are those of smdebug's
configuration. An invalid argument raises ConfigError with the valid values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tdcore.config import checks
from tdcore.errors import ConfigError
from tdcore.modes import ModeKeys
from tdcore.text.short_repr import settings_repr

__all__ = ["DEFAULT_SAVE_INTERVAL", "SETTINGS", "SaveConfig", "SaveConfigMode"]

DEFAULT_SAVE_INTERVAL = 500


@dataclass(frozen=True, slots=True)
class SaveConfigMode:
    """Saved steps of one mode.

    A step is saved if ``step % save_interval == 0 and start_step <= step < end_step``, or if it is in
    ``save_steps``. Steps are counted per mode from 0. Numbers may be given as text ("10").

    Args:
        save_interval: Interval in steps; None: the default.
        start_step: First step of the interval; None: 0.
        end_step: Step after the last step of the interval; None: no end.
        save_steps: Further steps, which are stored sorted.

    Raises:
        ConfigError: A value is invalid.
    """

    save_interval: int = DEFAULT_SAVE_INTERVAL
    start_step: int = 0
    end_step: int | None = None
    save_steps: Sequence[int] = ()

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        interval = DEFAULT_SAVE_INTERVAL if self.save_interval is None else self.save_interval
        object.__setattr__(self, "save_interval", checks.whole("save_interval", interval, least=1))
        start = 0 if self.start_step is None else self.start_step
        object.__setattr__(self, "start_step", checks.whole("start_step", start))
        if self.end_step is not None:
            object.__setattr__(self, "end_step", checks.whole("end_step", self.end_step))
        object.__setattr__(self, "save_steps", checks.steps(self.save_steps))

    def should_save_step(self, step: int) -> bool:
        """Whether the step (of this mode, from 0) is saved."""
        regular = step % self.save_interval == 0 and self.start_step <= step
        return (regular and (self.end_step is None or step < self.end_step)) or step in self.save_steps

    def next_saved_step(self, step: int) -> int | None:
        """The first saved step at or after `step`; None if there is none."""
        first = max(step, self.start_step)
        regular = first + (-first) % self.save_interval
        candidates = [listed for listed in self.save_steps if listed >= step][:1]
        if self.end_step is None or regular < self.end_step:
            candidates.append(regular)
        return min(candidates, default=None)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the four settings as JSON values."""
        return {
            "save_interval": self.save_interval,
            "start_step": self.start_step,
            "end_step": self.end_step,
            "save_steps": list(self.save_steps),
        }

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> SaveConfigMode:
        """Create an object from the result of to_json_dict(). Missing or None: the default."""
        checks.known_names("SaveConfigMode", params, SETTINGS)
        return cls(**params)


@dataclass(frozen=True, slots=True, eq=False)
class SaveConfig:
    """Saved steps of all modes.

        SaveConfig(save_interval=10)                      steps 0, 10, 20, ... of every mode
        SaveConfig(save_interval=10, save_steps=[3, 7])   the same steps, and 3 and 7
        SaveConfig({modes.TRAIN: SaveConfigMode(1)}, save_interval=10)   other modes: every 10th step
        SaveConfig({modes.TRAIN: SaveConfigMode(1)})      other modes: the settings of the hook

    Two objects are equal if they have the same settings for each mode.
    """

    mode_save_configs: Mapping[ModeKeys, SaveConfigMode] = field(default_factory=dict)
    save_interval: int = DEFAULT_SAVE_INTERVAL
    start_step: int = 0
    end_step: int | None = None
    save_steps: Sequence[int] = ()
    _rest: SaveConfigMode = field(init=False, repr=False, compare=False)
    _partial: bool = field(
        init=False, repr=False, default=False
    )  # True: modes that are not named have no settings

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        rest = SaveConfigMode(
            save_interval=self.save_interval,
            start_step=self.start_step,
            end_step=self.end_step,
            save_steps=self.save_steps,
        )
        for name in ("save_interval", "start_step", "end_step", "save_steps"):
            object.__setattr__(self, name, getattr(rest, name))
        object.__setattr__(self, "_rest", rest)
        object.__setattr__(self, "mode_save_configs", _per_mode(self.mode_save_configs))
        object.__setattr__(self, "_partial", bool(self.mode_save_configs) and rest == SaveConfigMode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SaveConfig) and self._of_modes() == other._of_modes()

    def __hash__(self) -> int:
        return hash(self._of_modes())

    def _of_modes(self) -> tuple[SaveConfigMode | None, ...]:
        return tuple(self.own(mode) for mode in ModeKeys)

    def get_save_config(self, mode: ModeKeys) -> SaveConfigMode:
        """The settings of the mode."""
        return self.mode_save_configs.get(mode, self._rest)

    def own(self, mode: ModeKeys) -> SaveConfigMode | None:
        """The mode's own settings; None if there are only settings of other modes."""
        return self.mode_save_configs.get(mode, None if self._partial else self._rest)

    def completed(self, other: SaveConfig) -> SaveConfig:
        """This configuration, with the settings of `other` for modes without settings of their own."""
        if not self._partial:
            return self
        modes = {mode: self.own(mode) or other.get_save_config(mode) for mode in ModeKeys}
        return SaveConfig(mode_save_configs=modes)

    def should_save_step(self, mode: ModeKeys, step: int) -> bool:
        """Whether the step of the mode (counted per mode, from 0) is saved."""
        return self.get_save_config(mode).should_save_step(step)

    def to_json_dict(self) -> dict[str, Any]:
        """Return mode name -> settings as JSON values, for every mode with settings."""
        found = {mode.name: self.own(mode) for mode in ModeKeys}
        return {name: own.to_json_dict() for name, own in found.items() if own is not None}

    def to_json(self) -> str:
        """Return to_json_dict() as JSON text."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(cls, params: Mapping[Any, Any]) -> SaveConfig:
        """Create an object from a mapping of modes or their names to settings, or from one for all modes.

        Modes that are missing or None use the settings of the hook. Raises ConfigError.
        """
        named = {mode.name: mode for mode in ModeKeys} | {mode: mode for mode in ModeKeys}
        if not any(key in named for key in params):
            checks.known_names("SaveConfig", params, SETTINGS)
            return cls(**params)
        checks.known_names("SaveConfig", params, tuple(named))
        given = {named[key]: value for key, value in params.items() if value is not None}
        per_mode = {
            mode: value if isinstance(value, SaveConfigMode) else SaveConfigMode.from_dict(value)
            for mode, value in given.items()
        }
        return cls(mode_save_configs=per_mode) if len(per_mode) == len(ModeKeys) else cls.parse(per_mode)

    @classmethod
    def from_json(cls, json_str: str) -> SaveConfig:
        """Create an object from the text of to_json(). Raises ConfigError."""
        return cls.from_dict(checks.json_object("SaveConfig", json_str))

    @classmethod
    def parse(cls, value: SaveConfig | SaveConfigMode | Mapping[ModeKeys, SaveConfigMode]) -> SaveConfig:
        """Create a SaveConfig from any form that the API accepts. A dict need not have all modes."""
        if isinstance(value, SaveConfig):
            return value
        if isinstance(value, SaveConfigMode):
            return cls(mode_save_configs=dict.fromkeys(ModeKeys, value))
        if isinstance(value, Mapping):
            found = cls(mode_save_configs=value)
            object.__setattr__(found, "_partial", True)
            return found
        raise ConfigError(
            f"save_config must be a SaveConfig or a dict of modes to SaveConfigMode, "
            f"got {type(value).__name__}"
        )


def _per_mode(value: Mapping[ModeKeys, SaveConfigMode] | None) -> dict[ModeKeys, SaveConfigMode]:
    result = {}
    for mode, config in (value or {}).items():
        if not isinstance(mode, ModeKeys):
            raise ConfigError(f"modes are modes.TRAIN, EVAL, PREDICT and GLOBAL, got {mode!r}")
        if not isinstance(config, SaveConfigMode):
            raise ConfigError(f"modes.{mode.name} needs a SaveConfigMode, got {type(config).__name__}")
        result[mode] = config
    return result


SETTINGS = tuple(item.name for item in fields(SaveConfigMode))
