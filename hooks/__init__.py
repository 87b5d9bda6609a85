"""Hooks, which connect the training loop of a framework to a capture session. One module per framework.

Importing this package loads no framework. `from tdcore.hooks.pytorch import Hook` loads PyTorch.
"""
