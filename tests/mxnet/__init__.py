"""Tests of the hook for MXNet. They run in an environment of their own: MXNet needs an old NumPy."""
