"""Fault campaigns: jobs with one fault after the other; they must not lose or duplicate a tensor."""
