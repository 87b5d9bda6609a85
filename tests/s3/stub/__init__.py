"""A strict S3 service for tests: checks what the real one checks, keeps objects in memory, fails when told.

`python -m tests.s3.stub` starts it; `tests.s3.servers.stub_server()` does so for a test. It shares no code
with tdcore, so that the two cannot be wrong together.
"""
