"""smdebug.analysis."""
