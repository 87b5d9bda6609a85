"""Diagnosis: `diagnose(run)` finds at most three causes of the faults of a run, with evidence and advice."""

from tdcore.rules.diagnosis.captures import DEFAULT_CAPTURES, DIAGNOSIS_CAPTURES
from tdcore.rules.diagnosis.causes import CAUSES, Cause
from tdcore.rules.diagnosis.diagnosis import Diagnosed, Diagnosis, diagnose
from tdcore.rules.diagnosis.evidence import Evidence

__all__ = [
    "CAUSES",
    "DEFAULT_CAPTURES",
    "DIAGNOSIS_CAPTURES",
    "Cause",
    "Diagnosed",
    "Diagnosis",
    "Evidence",
    "diagnose",
]
