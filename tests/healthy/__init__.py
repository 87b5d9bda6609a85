"""Healthy trainings of many kinds, on which no rule should fire: `python -m tests.healthy`."""
