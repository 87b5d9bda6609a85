"""Rank and world size, local parts of sharded tensors, outputs of collectives, replicas of DataParallel."""
