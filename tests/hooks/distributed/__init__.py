"""Hooks in jobs of several real processes, which communicate with gloo on this machine."""
