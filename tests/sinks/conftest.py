"""S3 servers for the sinks that need them."""

from tests.s3.fixtures import (  # noqa: F401
    moto,
    moto_session,
    rclone,
    rclone_session,
    s3_place,
    s3_prefix,
    stub,
    stub_session,
)
