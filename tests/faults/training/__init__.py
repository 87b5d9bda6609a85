"""Trainings with one planted fault each, and the same trainings without a fault, to evaluate rules.

    python -m tests.faults.training --part develop

architectures.py and held_out.py make healthy trainings, and faults.py lists the faults, which planting.py
plants in them. judge.py trains, records, and compares the findings of the rules with the planted fault.
"""
