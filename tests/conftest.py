"""S3 servers for the tests of whole jobs."""

from tests.s3.fixtures import moto, moto_session, s3_prefix, stub, stub_session  # noqa: F401
