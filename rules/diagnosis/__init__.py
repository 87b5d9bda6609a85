"""From findings to causes: `diagnose(run)` names at most three, with evidence and advice."""

from tdcore.rules.diagnosis.causes import CAUSES, Cause
from tdcore.rules.diagnosis.diagnosis import DIAGNOSIS_CAPTURES, Diagnosed, Diagnosis, diagnose
from tdcore.rules.diagnosis.evidence import Evidence

__all__ = ["CAUSES", "DIAGNOSIS_CAPTURES", "Cause", "Diagnosed", "Diagnosis", "Evidence", "diagnose"]
