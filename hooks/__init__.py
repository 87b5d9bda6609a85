"""Hooks: what connects a framework's training loop to a capture session. One module per framework.

Importing this package loads no framework: `from tdcore.hooks.pytorch import Hook` does.
"""
