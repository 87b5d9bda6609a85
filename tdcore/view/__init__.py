"""Pictures of a run: the answers that the live view and the report show, the report, and the server."""
