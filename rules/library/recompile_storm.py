"""TDC217: torch.compile that compiles again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.scans import duration_text, require_counts
from tdcore.rules.measures.step_halves import half_finding, judged_halves, require_step_counts, step_need
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["RecompileStorm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecompileStorm:
    """A compiled model that is compiled again and again, long after the start.

    What it does:
        Judges the number of compilations by torch.compile after the first steps, and their time.

    Why it matters:
        A compilation takes seconds to minutes. If the shapes or types of the inputs change all the time, the
        training can be slower than without torch.compile.

    Decides by:
        At each scan the rule judges the newest half of the steps of a worker and mode. Scans take place eight
        times while the number of steps doubles, for example after 64, 72, 80, ..., 128, 144, ... steps. The
        rule fires if the model was compiled at least `min_compiles` times in these steps, and if the
        compilations took at least `threshold` percent of the time of these steps.

    Parameters:
        threshold: share of the time above which the rule fires, in percent.
        min_compiles: smallest number of compilations in the judged steps.
        patience: number of steps at the start of each mode that are not judged.
        min_steps: smallest number of judged steps.
        min_seconds: smallest duration of the judged steps, in seconds.

    False alarms:
        - A curriculum whose few shapes come one after the other, each for the first time.
        - Regions of a large model that are used late, such as a loss after a warm-up.

    Do:
        Set TORCH_LOGS=recompiles, which prints the reason for each compilation. Pad the batches to a few
        fixed lengths, and drop the last, smaller batch (drop_last=True). Mark dimensions that change with
        torch._dynamo.mark_dynamic, or compile with dynamic=True.

    Source:
        PyTorch documentation, "torch.compile Troubleshooting", section on recompilation.
    """

    code: ClassVar[str] = "TDC217"
    judged_by: ClassVar[JudgedBy] = "run"
    step_time_columns: ClassVar[tuple[str, ...]] = ("duration_ns",)

    threshold: float = 5.0
    min_compiles: int = 5
    patience: int = 10
    min_steps: int = 8
    min_seconds: float = 10.0

    def __post_init__(self) -> None:
        require(0 < self.threshold <= 100, self, "threshold", self.threshold, "a percentage, above 0 to 100")
        require_counts(self, "min_compiles")
        require_step_counts(self)

    def needs(self) -> Need:
        """Times of steps."""
        return step_need(self)

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per worker, mode and scan."""
        for half in judged_halves(window, self):
            share, compiles = half.share("compile_ns"), half.total("compiles")
            if share < self.threshold or compiles < self.min_compiles:
                continue
            seconds = half.total("compile_ns") / 1e9
            yield half_finding(
                self,
                half,
                numbers={
                    "compiles": compiles,
                    "compile_percent": share,
                    "threshold": self.threshold,
                    "compile_seconds": seconds,
                },
                why=f"torch.compile compiled {compiles:,} times in {half.span}, which took "
                f"{duration_text(seconds)}, or {share:.0f} % of the time (limit {self.threshold:g} %). After "
                "the first steps, a model should not be compiled again",
                do="set TORCH_LOGS=recompiles to print the reasons; pad batches to a few fixed lengths, set "
                "drop_last=True, or compile with dynamic=True",
            )
