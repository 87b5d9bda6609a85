"""Fault campaigns: jobs that meet one misfortune after the other, and must lose and double nothing."""
