"""S3 services for tests: moto, rclone, a strict stub; and a proxy that makes faults on the way to them."""
