"""Weights, gradients, optimizer state and weight updates of one model."""
