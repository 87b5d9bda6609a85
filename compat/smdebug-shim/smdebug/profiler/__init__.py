"""smdebug.profiler. tdcore profiles with its own names (docs/profile.md of tdcore)."""
