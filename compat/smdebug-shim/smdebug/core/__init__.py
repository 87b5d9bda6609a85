"""smdebug.core."""
