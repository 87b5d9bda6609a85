"""Healthy trainings of many kinds, in which a diagnosis must find no cause: `--part healthy`."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.training.healthy.agents import AGENTS
from tests.faults.training.healthy.generative import GENERATIVE
from tests.faults.training.healthy.images import IMAGES
from tests.faults.training.healthy.metric import METRIC
from tests.faults.training.healthy.parts import Make
from tests.faults.training.healthy.tabular import TABULAR
from tests.faults.training.healthy.text import TEXT
from tests.faults.training.healthy.tuned import TUNED

__all__ = ["HEALTHY"]

HEALTHY: Mapping[str, Make] = {
    **IMAGES,
    **TEXT,
    **TUNED,
    **TABULAR,
    **GENERATIVE,
    **AGENTS,
    **METRIC,
}
