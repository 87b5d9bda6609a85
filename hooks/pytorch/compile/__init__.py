"""Models under torch.compile, torch.export, torch.jit and torch.fx."""
