"""Makes docs/rules/ from the docstrings of the rules and from what was measured of them.

--check only fails when a page is not fresh. tests/faults/training/measured.py writes the measurements.

running.md, false-alarms.md and related.md, written by hand, and proofs.md, made by the tests, are left alone.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from tdcore.rules import RULES
from tdcore.rules.explain import explain, page

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "rules"
MEASURED = ROOT / "tests" / "faults" / "training" / "measured.json"
BY_HAND = "running.md"
OTHERS = (BY_HAND, "false-alarms.md", "proofs.md", "related.md")


def measured_section(code: str, results: dict[str, Any]) -> str:
    """The last section of a rule's page: in how many runs of the campaigns it fired."""
    one = results["rules"].get(code)
    if one is None:
        return f"\n## Measured\n\nThe rule is newer than the last measurement (commit {results['commit']}).\n"
    parts = []
    if one["own"][1]:
        parts.append(
            f"in {_of(one['own'])} runs with a fault that it should find ({', '.join(one['causes'])})"
        )
    if one["by_product"][1]:
        parts.append(
            f"in {_of(one['by_product'])} runs with a fault that can cause a fault that it should find"
        )
    parts.append(f"in {_of(one['other'])} runs with another fault")
    parts.append(f"in {_of(one['healthy'])} healthy trainings")
    text = f"Fired {', '.join(parts[:-1])}, and {parts[-1]}."
    if not one["own"][1]:
        text = f"The set has no fault that this rule should find. {text}"
    method = (
        "The measurement uses a set of trainings: the parts `held_out` and `healthy` of `python -m "
        f"tests.faults.training`, with everything captured that all rules need (commit {results['commit']}). "
        "The faults in the set and the rules have the same authors. [diagnose.md](../diagnose.md) has the "
        "result of the diagnosis on the set."
    )
    wrapped = "\n\n".join(textwrap.fill(each, 120, break_on_hyphens=False) for each in (method, text))
    return f"\n## Measured\n\n{wrapped}\n"


def _of(counts: list[int]) -> str:
    return f"{counts[0]} of {counts[1]}"


def pages() -> dict[str, str]:
    results = json.loads(MEASURED.read_text(encoding="utf-8"))
    found = {f"{code}.md": page(code, rule) + measured_section(code, results) for code, rule in RULES.items()}
    lines = [
        "<!-- Made by scripts/make_rule_docs.py. -->",
        "# Rules",
        "",
        f"- [{BY_HAND}]({BY_HAND}): how to judge a run by rules.",
        "- [proofs.md](proofs.md): the number of tests of each rule.",
        "- [false-alarms.md](false-alarms.md): the findings of all rules on healthy trainings.",
        "- [related.md](related.md): published tools with the same aim.",
        "",
        "| code | rule | finds |",
        "|---|---|---|",
    ]
    lines += [f"| [{c}]({c}.md) | {rule.__name__} | {explain(rule).summary} |" for c, rule in RULES.items()]
    return {"README.md": "\n".join([*lines, ""]), **found}


def main() -> int:
    wanted = pages()
    there = {path.name: path.read_text() for path in FOLDER.glob("*.md") if path.name not in OTHERS}
    if wanted == there:
        return 0
    if "--check" in sys.argv:
        stale = sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))
        print(
            f"docs/rules is not fresh ({', '.join(stale)}); run: python scripts/make_rule_docs.py",
            file=sys.stderr,
        )
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in {*there} - {*wanted}:
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
