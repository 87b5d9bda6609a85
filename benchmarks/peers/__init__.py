"""Scripts that run inside a peer's own environment; they import neither tdcore nor its dependencies."""
