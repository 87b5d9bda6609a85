"""Tests. A package, so that tests can import the trainers and checks in tests/trainers/."""
