"""Trainings with a planted fault that costs time, and the same trainings without the fault."""
