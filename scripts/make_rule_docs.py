"""Make docs/rules/ from the docstrings of the rules and from the measurements of the rules.

    python scripts/make_rule_docs.py            write the pages
    python scripts/make_rule_docs.py --check    fail if a page is not up to date; write nothing

tests/faults/training/measured.py writes the measurements. The pages running.md, false-alarms.md and
related.md are written by hand, and the tests write proofs.md. This script does not change these pages.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from tdcore.rules import RULES
from tdcore.rules.base import is_summary
from tdcore.rules.explain import explain, page

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "rules"
MEASURED = ROOT / "tests" / "faults" / "training" / "measured.json"
BY_HAND = "running.md"
OTHERS = (BY_HAND, "false-alarms.md", "proofs.md", "related.md")


def measured_section(code: str, results: dict[str, Any]) -> str:
    """The last section of a rule's page: the number of runs in which the rule fired; "" for a summary."""
    one = results["rules"].get(code)
    if is_summary(RULES.get(code)):
        return ""
    if one is None:
        return f"\n## Measured\n\nThe rule is newer than the last measurement (commit {results['commit']}).\n"
    rows = []
    if one["own"][1]:
        rows.append((f"with a fault that the rule should find ({', '.join(one['causes'])})", one["own"]))
    if one["by_product"][1]:
        rows.append(("with a fault whose side effect the rule can find", one["by_product"]))
    rows += [("with another fault", one["other"]), ("without a fault (healthy trainings)", one["healthy"])]
    method = (
        "The rule was measured on a set of trainings: the parts `held_out` and `healthy` of `python -m "
        f"tests.faults.training` (commit {results['commit']}). The hook captured all tensors that any rule "
        "needs. The authors of the rules also wrote the faults in the set. [diagnose.md](../diagnose.md) has "
        "the result of the diagnosis on the set."
    )
    if not one["own"][1]:
        method += " The set has no fault that this rule should find."
    table = ["| runs | the rule fired in |", "|---|---|"]
    table += [f"| {runs} | {_of(counts)} |" for runs, counts in rows]
    text = textwrap.fill(method, 120, break_on_hyphens=False)
    return "\n## Measured\n\n" + text + "\n\n" + "\n".join(table) + "\n"


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
            f"docs/rules is not up to date ({', '.join(stale)}); run: python scripts/make_rule_docs.py",
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
