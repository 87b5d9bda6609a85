"""A strict S3 service for tests.

It makes the checks of the real service, stores objects in memory, and fails as its settings require. `python
-m tests.s3.stub` starts it; `tests.s3.servers.stub_server()` does so for a test. It shares no code with
tdcore, so that both cannot have the same error.
"""
