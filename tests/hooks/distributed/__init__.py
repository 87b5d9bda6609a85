"""Hooks in jobs of several real processes, which talk over gloo on this machine."""
