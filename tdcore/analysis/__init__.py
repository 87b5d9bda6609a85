"""Measures over stored tensors, on NumPy. Import modules by name: `from tdcore.analysis import confusion`."""
