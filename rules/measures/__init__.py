"""Measures that several rules use, such as series, validation phases and updates of weights."""
