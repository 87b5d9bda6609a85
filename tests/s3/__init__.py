"""S3 services for tests: moto, rclone, a strict stub; and a fault-injecting proxy in front of them."""
