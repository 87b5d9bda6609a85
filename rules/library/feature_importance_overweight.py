"""TDC116: an ensemble of trees that depends on a few features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.measures.series import scalars
from tdcore.rules.requirements import STATISTICS, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["FeatureImportanceOverweight"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureImportanceOverweight:
    """A few features that have almost all of the importance in an ensemble of trees.

    What it does:
        Computes the share of the `nfeatures` most important features in the sum of all importances of a step.

    Why it matters:
        If a model depends on two or three features, these often leak the label (an identifier, a value that
        is known only afterwards). The model fails if they are missing or drift.

    Decides by:
        The rule fires if the sum of the nfeatures largest importances / the sum of all importances >
        threshold, for each step, worker and type of importance. It reads the statistics of scalars named
        feature_importance/<type>/<feature>; the type is the part of the name before the last "/". The sum of
        the importances need not be 1.

        Steps with nfeatures features or fewer are not judged, because their share is always 1. Steps whose
        importances sum to 0 are not judged either.

    Parameters:
        threshold: largest share that is tolerated, 0 to 1.
        nfeatures: number of the most important features whose shares are added.
        tensor_regex: regular expressions for names of importances; a list, or one string with commas.

    False alarms:
        - The first trees, which use few features only.
        - Data with few relevant features.

    Do:
        Check the meaning of these features and when their values are known. Train without these features and
        compare. Sample columns (colsample_bytree), or compare with permutation importance.

    Source:
        S. Kaufman et al., Leakage in data mining, ACM TKDD 2012.
    """

    code: ClassVar[str] = "TDC116"
    judged_by: ClassVar[JudgedBy] = "worker"

    threshold: float = 0.8
    nfeatures: int = 3
    tensor_regex: str | Sequence[str] = ".*feature_importance/(weight|split)"

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        require(bool(names_of(self.tensor_regex)), self, "tensor_regex", self.tensor_regex, "a pattern")
        require(0 <= self.threshold <= 1, self, "threshold", self.threshold, "a share, 0 to 1")
        require(self.nfeatures >= 1, self, "nfeatures", self.nfeatures, "1 or more")

    def needs(self) -> Need:
        """Importances as scalars."""
        return Need(
            what=f"importances of more than {self.nfeatures} features, one scalar each",
            captures=captures_of(
                (),
                names_of(self.tensor_regex),
                save_config=SaveConfig(save_interval=10),
                keep=STATISTICS,
                name="feature_importance",
            ),
            frameworks=("xgboost", "lightgbm"),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per step and type of importance; its tensor is the most important feature."""
        columns = window.columns
        rows = np.flatnonzero(scalars(window, window.named(names_of(self.tensor_regex)), "importance"))
        if not rows.size:
            return
        value = np.maximum(columns.floats("mean")[rows], 0.0)
        names, texts = columns.codes("name")
        types = {text: at for at, text in enumerate(dict.fromkeys(_type_of(text) for text in texts))}
        of_name = np.array([types[_type_of(text)] for text in texts], dtype=np.int64)
        keys = np.stack(
            [
                columns.ints("attempt")[rows],
                columns.codes("worker")[0][rows],
                columns.ints("step")[rows],
                of_name[names[rows]],
            ]
        )
        _, group = np.unique(keys, axis=1, return_inverse=True)
        group = group.ravel()
        order = np.lexsort((-value, group))
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        size = np.diff(np.append(starts, rows.size))
        rank = np.arange(rows.size) - np.repeat(starts, size)
        total = np.bincount(group, weights=value)
        top = np.bincount(group[order], weights=np.where(rank < self.nfeatures, value[order], 0.0))
        judged = (size > self.nfeatures) & (total > 0)
        window.missing(f"step with {self.nfeatures} features or fewer", int(np.sum(size <= self.nfeatures)))
        window.missing("importances sum to 0", int(np.sum((size > self.nfeatures) & (total <= 0))))
        window.judged(int(np.sum(judged)))
        share = np.divide(top, total, out=np.zeros_like(top), where=total > 0)
        hits = np.flatnonzero(judged & (share > self.threshold))
        for at in hits[window.listed_at(rows[order[starts[hits]]])].tolist():
            largest = rows[order[starts[at] : starts[at] + self.nfeatures]].tolist()
            features = ", ".join(columns.text("name", row).rpartition("/")[2] for row in largest)
            yield window.finding(
                self,
                largest[0],
                numbers={
                    "kind": _type_of(columns.text("name", largest[0])),
                    "share": float(share[at]),
                    "threshold": self.threshold,
                    "nfeatures": self.nfeatures,
                    "features": int(size[at]),
                },
                why=f"{self.nfeatures} of {size[at]} features ({features}) have {100 * share[at]:.3g} % of "
                f"all importance; {100 * self.threshold:g} % is tolerated",
                do="check whether one of these features leaks the label; train without these features and "
                "compare, or sample columns",
            )


def _type_of(name: str | None) -> str:
    """The type of importance in a name."""
    return (name or "").rpartition("/")[0]
