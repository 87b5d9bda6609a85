"""ProfilerConfig: the training steps that are profiled. Names and fields are those of SageMaker's SDK.

    ProfilerConfig(start_step=100, num_steps=5)                       operators of steps 100 to 104
    ProfilerConfig(start_step=100, num_steps=5, python=True)          and their Python functions
    ProfilerConfig(start_time=1_700_000_000, duration=30)             the steps of 30 seconds
    ProfilerConfig(framework_profile_params=FrameworkProfile(python_profiling_config=...))

Frozen values, safe in any thread. profiler_json.py reads the JSON document of Amazon SageMaker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from tdcore.config import checks
from tdcore.config.profile_window import TIMERS, ProfileWindow
from tdcore.errors import ConfigError

__all__ = [
    "DataloaderProfilingConfig",
    "DetailedProfilingConfig",
    "FrameworkProfile",
    "ProfilerConfig",
    "PythonProfilingConfig",
]

_MAX_STEPS = 1000
_MAX_SECONDS = 3600.0
_MAX_TIME = 1e11  # seconds since 1970; larger numbers are milliseconds
_ANY_NAME = ".*"
_PROFILERS = ("cprofile", "pyinstrument")


def _text(value: Any) -> str:
    """A word, or the value of an enumeration of SageMaker's SDK."""
    return str(getattr(value, "value", value))


@dataclass(frozen=True, slots=True)
class _StepRange:
    """Steps from start_step on, or the steps of a duration from start_unix_time on.

    Attributes:
        start_step: The first step. None: the next step.
        num_steps: Number of steps, 1 to 1000. None: 1, or the steps of `duration`.
        start_unix_time: Earliest time of the first step, in seconds since 1970 (UTC).
        duration: Number of seconds, at most 3600.
        profile_default_steps: Profile the steps that SageMaker's SDK chooses, if no other field is set.

    Raises:
        ConfigError: A value is invalid.
    """

    start_step: int | None = None
    num_steps: int | None = None
    start_unix_time: float | None = None
    duration: float | None = None
    profile_default_steps: bool = False

    _DEFAULT: ClassVar[tuple[int, int]] = (5, 1)  # first step, number of steps

    def __post_init__(self) -> None:
        _check_range(type(self).__name__, self)

    def window(self, **what: Any) -> ProfileWindow:
        """The window of these steps. what: further fields of ProfileWindow."""
        first, count = self.start_step, self.num_steps
        ranged = (first, count, self.start_unix_time, self.duration) != (None,) * 4
        if self.profile_default_steps and not ranged:
            first, count = self._DEFAULT
        return ProfileWindow(
            start_step=first,
            num_steps=count if count is not None or self.duration is not None else 1,
            start_time=self.start_unix_time,
            duration=self.duration,
            **what,
        )

    def windows(self) -> Iterator[ProfileWindow]:
        """The window of the operators of these steps."""
        yield self.window()

    def without_effect(self) -> Iterator[str]:
        """Names of the fields that are set and have no effect."""
        return iter(())


@dataclass(frozen=True, slots=True)
class DetailedProfilingConfig(_StepRange):
    """Steps whose operators are recorded. See ProfilerConfig for the fields."""


@dataclass(frozen=True, slots=True)
class DataloaderProfilingConfig(_StepRange):
    """Steps whose operators are recorded, with the time in which the training waits for the DataLoader.

    metrics_regex: Has no effect: all operators are recorded.
    """

    metrics_regex: str = _ANY_NAME

    _DEFAULT: ClassVar[tuple[int, int]] = (7, 1)

    def without_effect(self) -> Iterator[str]:
        """Names of the fields that are set and have no effect."""
        if self.metrics_regex != _ANY_NAME:
            yield "metrics_regex"


@dataclass(frozen=True, slots=True)
class PythonProfilingConfig(_StepRange):
    """Steps whose Python functions are recorded with cProfile.

    Attributes:
        python_profiler: "cprofile". With "pyinstrument" cProfile is used, and a warning is logged.
        cprofile_timer: Clock: "total_time", "cpu_time" or "off_cpu_time" (total_time minus cpu_time).
    """

    python_profiler: str = _PROFILERS[0]
    cprofile_timer: str = TIMERS[0]

    _DEFAULT: ClassVar[tuple[int, int]] = (9, 3)

    def __post_init__(self) -> None:
        _check_range(type(self).__name__, self)
        profiler, timer = _text(self.python_profiler).lower(), _text(self.cprofile_timer).lower()
        if profiler not in _PROFILERS:
            raise ConfigError(
                f"PythonProfilingConfig.python_profiler must be {' or '.join(map(repr, _PROFILERS))}, got "
                f"{self.python_profiler!r:.80}; use 'cprofile'"
            )
        if timer not in (*TIMERS, "default"):
            raise ConfigError(
                f"PythonProfilingConfig.cprofile_timer must be {', '.join(map(repr, TIMERS))}, got "
                f"{self.cprofile_timer!r:.80}; use 'total_time'"
            )
        object.__setattr__(self, "python_profiler", profiler)
        object.__setattr__(self, "cprofile_timer", TIMERS[0] if timer == "default" else timer)

    def windows(self) -> Iterator[ProfileWindow]:
        """The window of the Python functions of these steps."""
        yield self.window(operators=False, python=True, timer=self.cprofile_timer)

    def without_effect(self) -> Iterator[str]:
        """Names of the fields that are set and have no effect."""
        if self.python_profiler != _PROFILERS[0]:
            yield "python_profiler (cProfile is used)"


@dataclass(frozen=True, slots=True)
class FrameworkProfile:
    """Profiles of operators, of the DataLoader and of Python functions.

    Without a further argument, the default steps of all three are profiled, as in SageMaker's SDK. The step
    fields are for all three that are not given. Traces have one size limit (docs/profile.md), so the fields
    of files (local_path, file_*) have no effect, and a warning names them.

    Raises:
        ConfigError: A value is invalid.
    """

    local_path: str | None = None
    file_max_size: int | None = None
    file_close_interval: int | None = None
    file_open_fail_threshold: int | None = None
    detailed_profiling_config: DetailedProfilingConfig | None = None
    dataloader_profiling_config: DataloaderProfilingConfig | None = None
    python_profiling_config: PythonProfilingConfig | None = None
    horovod_profiling_config: Any = None
    smdataparallel_profiling_config: Any = None
    start_step: int | None = None
    num_steps: int | None = None
    start_unix_time: float | None = None
    duration: float | None = None

    _WITHOUT_EFFECT: ClassVar[tuple[str, ...]] = (
        *("local_path", "file_max_size", "file_close_interval", "file_open_fail_threshold"),
        *("horovod_profiling_config", "smdataparallel_profiling_config"),
    )

    def __post_init__(self) -> None:
        _check_range("FrameworkProfile", self)
        kinds = {
            "detailed_profiling_config": DetailedProfilingConfig,
            "dataloader_profiling_config": DataloaderProfilingConfig,
            "python_profiling_config": PythonProfilingConfig,
        }
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise ConfigError(
                    f"FrameworkProfile.{name} must be a {kind.__name__}, got {type(value).__name__}; "
                    f"write {kind.__name__}(start_step=..., num_steps=...)"
                )

    def parts(self) -> list[_StepRange]:
        """The requested profiles."""
        given = [self.detailed_profiling_config, self.dataloader_profiling_config]
        found: list[_StepRange] = [each for each in given if each is not None]
        if self.python_profiling_config is not None:
            found.append(self.python_profiling_config)
        if found:
            return found
        steps = {name: getattr(self, name) for name in _RANGE}
        default = all(value is None for value in steps.values())
        kinds = (DetailedProfilingConfig, DataloaderProfilingConfig, PythonProfilingConfig)
        return [kind(**steps, profile_default_steps=default) for kind in kinds]

    def without_effect(self) -> Iterator[str]:
        """Names of the fields that are set and have no effect."""
        yield from (name for name in self._WITHOUT_EFFECT if getattr(self, name) is not None)
        for part in self.parts():
            yield from part.without_effect()


_RANGE = ("start_step", "num_steps", "start_unix_time", "duration")


@dataclass(frozen=True, slots=True)
class ProfilerConfig:
    """Training steps that are profiled, and the interval of the system metrics.

    Steps are counted in the mode TRAIN (or GLOBAL), from 0. Give steps or times, not both.

    Attributes:
        s3_output_path: Has no effect: profiles are stored in the run.
        system_monitor_interval_millis: Interval of the system metrics, 100 to 60000 milliseconds. None: the
            interval of TDCORE_SYSTEM_INTERVAL.
        framework_profile_params: Several profiles, as in SageMaker's SDK.
        disable_profiler: Record no profiles and no system metrics. Requests of `tdcore profile` still work.
        start_step: The first step. None: the next step.
        num_steps: Number of steps, 1 to 1000.
        start_time: Earliest time of the first step, in seconds since 1970 (UTC).
        duration: Number of seconds, at most 3600. The window has whole steps.
        operators: Record the operators of these steps with torch.profiler.
        python: Record the Python functions of these steps with cProfile.

    Raises:
        ConfigError: A value is invalid.
    """

    s3_output_path: str | None = None
    system_monitor_interval_millis: int | None = None
    framework_profile_params: FrameworkProfile | None = None
    disable_profiler: bool = False
    start_step: int | None = None
    num_steps: int | None = None
    start_time: float | None = None
    duration: float | None = None
    operators: bool = True
    python: bool = False

    def __post_init__(self) -> None:
        _check_range("ProfilerConfig", self)
        for name in ("disable_profiler", "operators", "python"):
            checks.flag(f"ProfilerConfig.{name}", getattr(self, name))
        given = self.framework_profile_params
        if given is not None and not isinstance(given, FrameworkProfile):
            raise ConfigError(
                "ProfilerConfig.framework_profile_params must be a FrameworkProfile, got "
                f"{type(given).__name__}; write FrameworkProfile(...)"
            )
        if self._has_steps and not (self.operators or self.python):
            raise ConfigError("ProfilerConfig: operators and python are both False; set one of them to True")
        millis = self.system_monitor_interval_millis
        if millis is not None and (type(millis) is not int or not 100 <= millis <= 60_000):
            raise ConfigError(
                "ProfilerConfig.system_monitor_interval_millis must be 100 to 60000 milliseconds, got "
                f"{millis!r:.80}"
            )

    @property
    def _has_steps(self) -> bool:
        return (self.start_step, self.num_steps, self.start_time, self.duration) != (None,) * 4

    def windows(self) -> list[ProfileWindow]:
        """The windows to record. Operators and Python functions of the same steps are one window."""
        if self.disable_profiler:
            return []
        found: list[ProfileWindow] = []
        if self._has_steps:
            steps = _StepRange(self.start_step, self.num_steps, self.start_time, self.duration)
            found.append(steps.window(operators=self.operators, python=self.python))
        for part in self.framework_profile_params.parts() if self.framework_profile_params else ():
            found += part.windows()
        return _joined(found)

    def system_interval(self) -> timedelta | None:
        """Interval of the system metrics, zero if they are off. None: the interval of the environment."""
        if self.disable_profiler:
            return timedelta()
        millis = self.system_monitor_interval_millis
        return None if millis is None else timedelta(milliseconds=millis)

    def without_effect(self) -> list[str]:
        """Names of the fields that are set and have no effect."""
        found = ["s3_output_path"] if self.s3_output_path is not None else []
        found += self.framework_profile_params.without_effect() if self.framework_profile_params else ()
        return list(dict.fromkeys(found))

    def to_json_dict(self) -> dict[str, Any]:
        """The windows and the interval as JSON values, for run.json."""
        names = ("operators", "python", "start_step", "num_steps", "start_time", "duration", "timer")
        return {
            "system_monitor_interval_millis": self.system_monitor_interval_millis,
            "disable_profiler": self.disable_profiler,
            "windows": [{name: getattr(each, name) for name in names} for each in self.windows()],
        }


def _joined(windows: list[ProfileWindow]) -> list[ProfileWindow]:
    """Windows of the same steps as one window."""
    found: dict[tuple[Any, ...], ProfileWindow] = {}
    for each in windows:
        key = (each.start_step, each.num_steps, each.start_time, each.duration)
        known = found.get(key)
        timer = each.timer if each.python or known is None else known.timer
        found[key] = ProfileWindow(
            operators=each.operators or (known is not None and known.operators),
            python=each.python or (known is not None and known.python),
            start_step=each.start_step,
            num_steps=each.num_steps,
            start_time=each.start_time,
            duration=each.duration,
            timer=timer,
        )
    return list(found.values())


def _check_range(where: str, given: Any) -> None:
    """Raise ConfigError unless the object has steps or times, in their ranges."""
    start = "start_time" if hasattr(given, "start_time") else "start_unix_time"
    _check_whole(f"{where}.start_step", given.start_step, 0, (1 << 63) - 1)
    _check_whole(f"{where}.num_steps", given.num_steps, 1, _MAX_STEPS)
    _check_number(f"{where}.{start}", getattr(given, start), _MAX_TIME, "seconds since 1970")
    _check_number(f"{where}.duration", given.duration, _MAX_SECONDS, "seconds")
    steps = [name for name in ("start_step", "num_steps") if getattr(given, name) is not None]
    times = [name for name in (start, "duration") if getattr(given, name) is not None]
    if steps and times:
        raise ConfigError(f"{where} has {steps[0]} and {times[0]}; give steps or times, not both")


def _check_whole(where: str, value: object, least: int, most: int) -> None:
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise ConfigError(f"{where} must be a whole number from {least} to {most}, got {value!r:.80}")


def _check_number(where: str, value: object, most: float, unit: str) -> None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if value is not None and not (fits and 0 < float(str(value)) <= most):
        raise ConfigError(f"{where} must be a number of {unit} above 0, at most {most:g}, got {value!r:.80}")
