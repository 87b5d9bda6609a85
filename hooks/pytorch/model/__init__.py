"""Structure of a model and the names of its tensors. Imports nothing about steps or hooks."""
