"""Trainings with one planted fault each, and the same trainings without a fault: what rules must name.

    python -m tests.faults.training --part develop

architectures.py and held_out.py make healthy trainings, faults.py names what planting.py changes in them, and
judge.py trains, records, and compares what the rules say with what was planted.
"""
