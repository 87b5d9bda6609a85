"""What rules measure rows with: series, validation phases, units of a layer, updates of weights, ..."""
