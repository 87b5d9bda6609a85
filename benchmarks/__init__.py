"""Benchmarks. benchmarks/README.md explains the method before any number."""
