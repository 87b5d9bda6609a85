"""Makes docs/rules/ from the docstrings of the rules. --check only fails when a page is not fresh.

running.md and false-alarms.md, written by hand, and proofs.md, made by the tests, are left alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tdcore.rules import RULES
from tdcore.rules.explain import explain, page

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "rules"
BY_HAND = "running.md"
OTHERS = (BY_HAND, "false-alarms.md", "proofs.md")


def pages() -> dict[str, str]:
    found = {f"{code}.md": page(code, rule) for code, rule in RULES.items()}
    lines = [
        "<!-- Made by scripts/make_rule_docs.py. -->",
        "# Rules",
        "",
        f"[{BY_HAND}]({BY_HAND}): how to judge a run by them.",
        "[proofs.md](proofs.md): what the tests show of each.",
        "[false-alarms.md](false-alarms.md): all of them on healthy trainings.",
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
