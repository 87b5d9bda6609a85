"""The format of numbers in sentences."""

from __future__ import annotations

import pytest

from tdcore.rules.measures.format import rounded


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.01234, "0.0123"), (45.67, "45.7"), (150.4, "150"), (-12345.0, "-12345"), (2e7, "2e+07")],
)
def test_a_number_has_an_exponent_only_where_it_is_huge_or_tiny(value: float, text: str) -> None:
    assert rounded(value) == text
