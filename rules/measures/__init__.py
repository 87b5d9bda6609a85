"""Measures that rules share: series, validation phases, units of a layer, updates of weights, and more."""
