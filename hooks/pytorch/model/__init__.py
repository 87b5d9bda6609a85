"""Structure of a model and the names of its tensors. Nothing here knows steps or hooks."""
