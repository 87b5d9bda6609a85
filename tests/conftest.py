"""S3 servers for whoever asks for one: started with the first test that does, and shared by all."""

from tests.s3.fixtures import (  # noqa: F401 -- fixtures are found by their names
    moto,
    moto_session,
    rclone,
    rclone_session,
    s3_place,
    s3_prefix,
    stub,
    stub_session,
)
