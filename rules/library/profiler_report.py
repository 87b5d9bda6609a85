"""TDC212: all rules about machines and times of steps, as one rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tdcore.errors import ConfigError
from tdcore.rules.base import Finding, Rule, names_of
from tdcore.rules.library.batch_size import BatchSize
from tdcore.rules.library.checkpoint_stall import CheckpointStall
from tdcore.rules.library.cpu_bottleneck import CPUBottleneck
from tdcore.rules.library.dataloader import Dataloader
from tdcore.rules.library.gpu_memory_increase import GPUMemoryIncrease
from tdcore.rules.library.input_bound import InputBound
from tdcore.rules.library.io_bottleneck import IOBottleneck
from tdcore.rules.library.load_balancing import LoadBalancing
from tdcore.rules.library.loop_overhead import LoopOverhead
from tdcore.rules.library.low_gpu_utilization import LowGPUUtilization
from tdcore.rules.library.max_initialization_time import MaxInitializationTime
from tdcore.rules.library.memory_growth import MemoryGrowth
from tdcore.rules.library.overall_framework_metrics import OverallFrameworkMetrics
from tdcore.rules.library.overall_system_usage import OverallSystemUsage
from tdcore.rules.library.recompile_storm import RecompileStorm
from tdcore.rules.library.step_outlier import StepOutlier
from tdcore.rules.library.straggler import Straggler
from tdcore.rules.library.thermal_throttle import ThermalThrottle
from tdcore.rules.loading import rule_from_strings
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["COMBINED", "ProfilerReport"]

COMBINED: tuple[type[Rule], ...] = (
    BatchSize,
    CPUBottleneck,
    IOBottleneck,
    GPUMemoryIncrease,
    LoadBalancing,
    LowGPUUtilization,
    MaxInitializationTime,
    StepOutlier,
    Dataloader,
    OverallSystemUsage,
    OverallFrameworkMetrics,
    MemoryGrowth,
    ThermalThrottle,
    Straggler,
    InputBound,
    RecompileStorm,
    CheckpointStall,
    LoopOverhead,
)  # all rules about machines and times of steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerReport:
    """All rules about machines and times of steps, as one rule.

    What it does:
        Runs all rules from TDC201 on, and the two summaries OverallSystemUsage and OverallFrameworkMetrics.
        Each of them has its own verdict, and findings have the name of the rule that found them.

    Why it matters:
        One name stands for all rules of a profile, also in configurations that were written for smdebug.

    Decides by:
        The verdict is an issue if one of the rules has found an issue, and then lists these rules. It is not
        evaluable if none of the rules could judge the run. If some of the rules could not judge the run, they
        do not change the verdict, because few runs have the data of all rules: samples of GPUs, for example.
        The summary in the verdict has the number of findings of each rule.

        The rule runs only if it is named. "all" does not include it, because it includes all other rules.

    Parameters:
        parameters: parameters of rules, such as StepOutlier_stddev=4: the name of the rule in any case, "_",
            and the name of the parameter. On the command line and in configuration files, write them without
            the name of this list: profiler_report:StepOutlier_stddev=4.
        opt_out_telemetry: accepted and without effect, because nothing is sent.

    False alarms:
        Those of the rules.

    Do:
        `tdcore rules report` writes the verdicts, the findings and the summaries as a page.

    Source:
        The rule ProfilerReport of smdebug.
    """

    code: ClassVar[str] = "TDC212"
    judged_by: ClassVar[JudgedBy] = "run"
    is_summary: ClassVar[bool] = True
    step_time_columns: ClassVar[tuple[str, ...]] = ("duration_ns",)
    system_columns: ClassVar[tuple[str, ...]] = ("cpu_percent",)
    samples_optional: ClassVar[bool] = True

    parameters: tuple[str, ...] = ()
    opt_out_telemetry: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", names_of(self.parameters))
        self.combined_rules()

    def needs(self) -> Need:
        """Times of steps or system samples."""
        return Need(what="times of steps or system samples")

    def check(self, window: Window) -> Iterator[Finding]:
        """No findings: the combined rules have them."""
        return iter(())

    def combined_rules(self) -> tuple[Rule, ...]:
        """The rules, with their parameters.

        Raises ConfigError for an unknown rule or parameter.
        """
        kinds = {kind.__name__.lower(): kind for kind in COMBINED}
        given: dict[str, dict[str, str]] = {name: {} for name in kinds}
        for each in self.parameters:
            name, equals, value = each.partition("=")
            rule, _, parameter = name.strip().partition("_")
            if rule.lower() not in kinds or not parameter or not equals:
                names = ", ".join(sorted(kind.__name__ for kind in kinds.values()))
                raise ConfigError(
                    f"ProfilerReport has no parameter {name!r}; write <rule>_<parameter>=<value>, with one "
                    f"of the rules {names}"
                )
            if parameter in given[rule.lower()]:
                raise ConfigError(f"ProfilerReport gets {name!r} twice")
            given[rule.lower()][parameter] = value.strip()
        return tuple(rule_from_strings(kind, given[name]) for name, kind in kinds.items())
