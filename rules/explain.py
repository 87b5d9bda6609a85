"""Explain: converts a rule's docstring to sections, and to its page docs/rules/<code>.md.

The docstring is the only place where a rule is documented. Plain functions; any thread.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from tdcore.rules.base import Rule

__all__ = ["SECTIONS", "Explanation", "RuleParameter", "explain", "page"]

_WIDTH = 120  # line length of the prose of a page
_SMDEBUG = "smdebug is the library of Amazon SageMaker Debugger ([moving.md](../moving.md))."

_CASES = ("Fires", "Stays quiet")

SECTIONS = ("What it does", "Why it matters", "Decides by", "Parameters", "False alarms", "Do", "Source")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleParameter:
    """A parameter of a rule. default: as Python text."""

    name: str
    default: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The parts of a docstring. summary: its first line. sections: title -> text, without the parameters."""

    summary: str
    sections: dict[str, str]
    parameters: tuple[RuleParameter, ...]


def explain(rule: type[Rule]) -> Explanation:
    """The parts of a rule's docstring.

    Raises ValueError if a section is missing or out of order, or a parameter is not documented.
    """
    text = inspect.cleandoc(rule.__doc__ or "")
    summary, _, rest = text.partition("\n")
    sections: dict[str, list[str]] = {}
    title = ""
    for line in rest.strip().splitlines():
        if re.fullmatch(r"[A-Z][A-Za-z ]*:", line):
            title = line[:-1]
            sections[title] = []
        elif title:
            sections[title].append(line)
    if tuple(sections) != SECTIONS:
        raise ValueError(
            f"the docstring of {rule.__name__} has sections {list(sections)}, expected {list(SECTIONS)}"
        )
    return Explanation(
        summary=summary,
        sections={title: _prose(lines) for title, lines in sections.items() if title != "Parameters"},
        parameters=_parameters(rule, sections["Parameters"]),
    )


def _prose(lines: list[str]) -> str:
    """The paragraphs and list items of a section, each in one line.

    A blank line ends a paragraph. An item of a list begins with "- ".
    """
    text = inspect.cleandoc("\n".join(["", *lines]))
    return re.sub(r"(?<!\n)\n(?!\n|- )\s*", " ", text)


def _joined(lines: list[str]) -> str:
    """Join wrapped lines to one line."""
    return " ".join(line.strip() for line in lines if line.strip())


def _parameters(rule: type[Any], lines: list[str]) -> tuple[RuleParameter, ...]:
    """One RuleParameter for each field, in order. Raises ValueError if the text and the fields differ."""
    texts: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        match = re.fullmatch(r"    (\w+): (.*)", line)
        if match:
            name = match[1]
            texts[name] = [match[2]]
        elif line.strip() and name:
            texts[name].append(line)
    defaults = (
        {field.name: repr(field.default) for field in fields(rule) if field.init}
        if is_dataclass(rule)
        else {}
    )
    if list(texts) != list(defaults):
        raise ValueError(f"{rule.__name__} documents parameters {list(texts)} and has {list(defaults)}")
    return tuple(
        RuleParameter(name=name, default=default, text=_joined(texts[name]))
        for name, default in defaults.items()
    )


def page(code: str, rule: type[Rule]) -> str:
    """Markdown text of docs/rules/<code>.md."""
    from tdcore.rules.cases import CASES, SUMMARY_CASES

    explanation = explain(rule)
    lines = [
        f"<!-- Made by scripts/make_rule_docs.py from the docstring of {rule.__name__}; change it there. -->",
        f"# {code}: {rule.__name__}",
        "",
        explanation.summary,
    ]
    for title, text in explanation.sections.items():
        lines += ["", f"## {title}", "", _wrapped(text)]
        if title == "Decides by":
            lines += ["", _SMDEBUG] if "smdebug" in (rule.__doc__ or "") else []
            lines += ["", "## Parameters", "", *_parameter_table(explanation.parameters)]
    if code in SUMMARY_CASES:
        stories = [f"Never fires: {SUMMARY_CASES[code].story}"]
    else:
        stories = [f"{what}: {case.story}" for what, case in zip(_CASES, CASES[code], strict=True)]
    lines += ["", "## Cases"]
    lines += [line for story in stories for line in ("", _wrapped(story))]
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", rule.__name__).lower()
    lines += ["", "## Use", "", "```sh", f"tdcore rules run runs/demo --rule {name}", "```", ""]
    return "\n".join(lines)


def _parameter_table(parameters: Sequence[RuleParameter]) -> list[str]:
    if not parameters:
        return ["None."]
    head = ["| parameter | default | meaning |", "|---|---|---|"]
    cells = (
        (each.name, each.default.replace("|", r"\|"), each.text.replace("|", r"\|")) for each in parameters
    )
    return head + [f"| `{name}` | `{default}` | {text} |" for name, default, text in cells]


def _wrapped(text: str) -> str:
    """Wrap prose to the line length of a page. Further lines of a list item are indented."""
    wrap = textwrap.TextWrapper(_WIDTH, break_long_words=False, break_on_hyphens=False)
    lines = []
    for line in text.split("\n"):
        wrap.subsequent_indent = "  " if line.startswith("- ") else ""
        lines.append(wrap.fill(line))
    return "\n".join(lines)
