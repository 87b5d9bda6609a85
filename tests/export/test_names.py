"""Names of tensors in other tools: accepted by the tool, and different for different tensors."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.export.points import Naming
from tdcore.export.source import STATISTICS
from tests.export.runs import HOSTILE_NAMES

NAMINGS = {
    "letters": Naming(allowed=r"[A-Za-z0-9_./-]", max_chars=60, reserved=frozenset({"TRAIN/step"})),
    "most characters": Naming(allowed=r"[^\x00-\x1f\x7f\ud800-\udfff]", max_chars=60),
}
PIECES = st.sampled_from(
    [*HOSTILE_NAMES[:12], "/", "@", "1", "mean", "-", "0123456789", ".", "é", "\ud800", "TRAIN"]
)
NAMES = st.lists(PIECES, min_size=1, max_size=5).map("".join)
KEYS = st.tuples(NAMES, st.sampled_from([0, 1, 12]), st.sampled_from(["", "magnitudes", *STATISTICS]))


@settings(max_examples=60)
@given(st.sampled_from(sorted(NAMINGS)), st.lists(KEYS, unique=True, min_size=2, max_size=30))
def test_different_tensors_have_different_names_that_the_tool_accepts(
    which: str, keys: list[tuple[str, int, str]]
) -> None:
    naming = NAMINGS[which]
    tags = [naming.tag(*key) for key in keys]
    assert len(set(tags)) == len(tags)
    for tag in tags:
        assert re.fullmatch(f"(?:{naming.allowed})+", tag)
        assert len(tag) <= naming.max_chars
        assert not {"", ".", ".."}.intersection(tag.split("/"))
        assert tag not in naming.reserved


def test_usual_names_stay_as_they_are() -> None:
    naming = NAMINGS["letters"]
    for name in ("Net_fc1.weight", "gradient/Net_fc1.weight", "relu_output_0", "CrossEntropyLoss_output_0"):
        assert naming.tag(name) == name
        assert naming.tag(name, 0, "mean") == f"{name}/mean"


def test_a_name_does_not_depend_on_other_names() -> None:
    first, second = (Naming(allowed="[a-z]") for _ in range(2))
    first.tag("a b")
    assert first.tag("a:b") == second.tag("a:b")
