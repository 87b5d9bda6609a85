"""Tests. A package, so that they can share the trainers and checks in tests/trainers/."""
