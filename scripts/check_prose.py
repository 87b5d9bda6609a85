"""Check the part of the prose rule that a script can check: line lengths, phrases, docstring summaries.

    python scripts/check_prose.py            all pages, Python files and C++ files
    python scripts/check_prose.py FILE...    only these files

Pages are checked as a whole, Python files in their docstrings and comments, C++ files in their comments. The
messages of the package (tdcore, hooks, rules) are checked too: strings of three words or more.
Prose lines in Markdown have at most 120 characters; tables and code may be longer. Only phrases that a
pattern finds without false matches are banned; CONTRIBUTING.md has the rule itself. A docstring starts with a
summary of at most 110 characters. Pages that a program generates are listed in scripts/generated_pages.txt
and are not checked. Needs the standard library only. Exit codes: 0 if there are no problems, 1 otherwise.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ROOT / "scripts" / "generated_pages.txt"
SELF = "scripts/check_prose.py"  # contains the banned phrases, so it is not checked
MAX_PROSE, MAX_DOCSTRING = 120, 110
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
CPP = (".cpp", ".hpp", ".cuh")
PACKAGE = ("tdcore/", "hooks/", "rules/")

# Pattern -> what to write instead. Spaces also match line breaks. Matched without case.
BANNED = {
    r"of which": "name the thing again",
    r"beside": '"next to", "compared with" or "in addition to"',
    r"(?:lies?|lay) (?:in|on|above|below|near|within|between|behind|beyond)": '"is in", "is stored in"',
    r"(?:stands?|stood) (?:in|on|at|behind|before|still|there|where|under|after)": '"is in", "is stored in"',
    r"what (?:(?:an?|the|its) )?\w+ (?:owes?|pays?|gives?|does(?!:|\Z))": "the name of the thing",
    r"(?:is|are) (?:what|to be (?:asked|looked|told))": "a noun, or an imperative",
    r"ever more|seldom": '"with exponential backoff", "rarely"',
    r"cannot be told|told from|told by": '"cannot be computed from", "distinguished by"',
    r"(?:tdcore|code|flusher|file|row|reader|doctor) (?:says?|tells?|knows?|sees?|wants?|asks?|owes?)": (
        '"returns", "logs", "contains", "reports", "requires"'
    ),
    r"gives? up|gave up|given up": '"times out", "drops", "stops"',
    r"not shown to": '"not registered"',
    r"(?:not|is|are) looked at": '"skipped", "inspected"',
    r"without a word|in silence": '"silently", "without a log message"',
    r"asked for": '"requested"',
    r"mend(?:s|ed|ing)?": '"fix"',
    r"dearest": '"most expensive"',
    r"of ours": '"of tdcore"',
    r"(?:and|or) (?:the|its|their) likes?": '"and similar"',
    r"as ever": '"as before"',
    r"lest": '"so that ... does not"',
    r"whoever|whomever": "the noun",
    r"for want of": '"because there is no"',
    r"under way": '"in progress"',
    r"at hand": '"available"',
    r"the way of (?:an?|the)": '"the path of"',
    r"speaks? (?:for|to|of)": "the exact verb",
    r"makes? good|made good": '"replace", "repeat"',
    r"goes? before|go before": '"has priority over"',
    r"came to nothing|come to nothing": '"failed"',
    r"somebody|nobody": "the noun: a process, a user",
    r"end points?": '"endpoint"',
    r"(?<!there\s)(?:is|are|was|were) no (?!longer|more|less|larger)\w+": '"is not a ..."',
}
_BANNED = [
    (re.compile(rf"\b(?:{phrase})\b".replace(" ", r"\s+"), re.IGNORECASE), better)
    for phrase, better in BANNED.items()
]
# Strings, which are skipped, and comments.
_STRING = r'"(?:\\.|[^"\\\n])*"'
_CPP_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_PYTHON_COMMENT = re.compile(
    rf"\"{{3}}.*?\"{{3}}|'{{3}}.*?'{{3}}|{_STRING}|'(?:\\.|[^'\\\n])*'|#[^\n]*", re.DOTALL
)
_LEAST_WORDS = 3  # minimum number of words in a message
_FENCE = re.compile(r"^ *```.*?^ *```|^ *~~~.*?^ *~~~", re.DOTALL | re.MULTILINE)
_HIDDEN = re.compile(r"<!--.*?-->|`[^`\n]+`|\]\([^)\s]*\)|^:::.*(?:\n    .*)*", re.DOTALL | re.MULTILINE)


class Problem(NamedTuple):
    """A place where the text breaks the rule."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def main(arguments: list[str]) -> int:
    paths = [str(Path(each).resolve().relative_to(ROOT)) for each in arguments] or tracked_files()
    generated = set(GENERATED.read_text().split())
    found: list[Problem] = []
    for path in paths:
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".md") and path not in generated:
            found += check_page(path, text)
        elif path.endswith(".py") and path != SELF:
            found += check_docstrings(path, text)
            found += check_comments(path, text)
            if path.startswith(PACKAGE):
                found += check_messages(path, text)
        elif path.endswith(CPP):
            found += check_cpp_comments(path, text)
    for problem in found:
        print(problem)
    return 1 if found else 0


def tracked_files() -> list[str]:
    """Markdown, Python and C++ files of the repository, with new files, without files that git ignores."""
    patterns = ["*.md", "*.py", *(f"*{suffix}" for suffix in CPP)]
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted({each for each in listed if each and (ROOT / each).is_file()})


def check_page(path: str, text: str) -> Iterator[Problem]:
    """Find long lines and banned phrases in a Markdown page."""
    prose = _FENCE.sub(_blank, text)
    for number, line in enumerate(prose.splitlines(), 1):
        if len(line) > MAX_PROSE and not line.lstrip().startswith("|") and " " in line.strip():
            yield Problem(path, number, f"{len(line)} characters, at most {MAX_PROSE}")
    yield from check_phrases(path, _HIDDEN.sub(_blank, prose), 1)


def check_docstrings(path: str, text: str) -> Iterator[Problem]:
    """Find docstrings of a Python file without a short summary in the first line, or with banned phrases."""
    for node in _documented(ast.parse(text)):
        body = node.body
        if not body or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Constant):
            continue
        docstring = body[0].value.value
        if not isinstance(docstring, str):
            continue
        line = body[0].lineno
        first = docstring.split("\n", 1)[0]
        if not first.strip():
            yield Problem(path, line, "write the summary of a docstring in the line of the opening quotes")
        if len(first) > MAX_DOCSTRING:
            yield Problem(path, line, f"summary of {len(first)} characters, at most {MAX_DOCSTRING}")
        yield from check_phrases(path, _HIDDEN.sub(_blank, docstring), line)


def check_comments(path: str, text: str) -> Iterator[Problem]:
    """Find banned phrases in the comments of a Python file. A phrase may continue in the next line."""
    yield from check_phrases(path, _HIDDEN.sub(_blank, "\n".join(_comments(text, _PYTHON_COMMENT, " #"))), 1)


def check_messages(path: str, text: str) -> Iterator[Problem]:
    """Find banned phrases in the strings of a Python file with three words or more, except docstrings."""
    tree = ast.parse(text)
    skipped = set()  # docstrings, and the parts of formatted strings
    for documented in _documented(tree):
        skipped |= {id(each.value) for each in documented.body if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= set(map(id, node.values))
            message = "".join(map(_text_of, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            message = node.value
        else:
            continue
        if len(message.split()) >= _LEAST_WORDS:
            yield from check_phrases(path, _HIDDEN.sub(_blank, " ".join(message.split())), node.lineno)


def check_cpp_comments(path: str, text: str) -> Iterator[Problem]:
    """Find banned phrases in the comments of a C++ file. A phrase may continue in the next line."""
    yield from check_phrases(path, "\n".join(_comments(text, _CPP_COMMENT, " */")), 1)


def check_phrases(path: str, text: str, first_line: int) -> Iterator[Problem]:
    """Find banned phrases in text whose code was replaced by spaces."""
    for pattern, better in _BANNED:
        for match in pattern.finditer(text):
            line = first_line + text.count("\n", 0, match.start())
            phrase = " ".join(match[0].split())
            yield Problem(path, line, f'"{phrase}": write {better}')


def _text_of(part: ast.expr) -> str:
    """The text of a part of a formatted string; "{}" for a value."""
    return str(part.value) if isinstance(part, ast.Constant) else "{}"


def _comments(text: str, pattern: re.Pattern[str], marks: str) -> list[str]:
    """The comment of each line of a file, without its marks; "" for a line without a comment.

    pattern: matches strings, which begin with a quote, and comments. marks: characters to remove at the
    start.
    """
    lines = [""] * (text.count("\n") + 1)
    number = position = 0
    for match in pattern.finditer(text):
        number += text.count("\n", position, match.start())
        position = match.start()
        if match[0][0] not in "\"'":
            for offset, line in enumerate(match[0].split("\n")):
                lines[number + offset] = line.lstrip(marks)
    return lines


def _documented(tree: ast.Module) -> Iterator[Documented]:
    """Yield the module, its classes and its functions. Expressions are skipped to save time."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # the list grows during the loop
        if isinstance(node, Documented):
            yield node
        for name in ("body", "orelse", "finalbody", "handlers"):
            nodes += [
                each for each in getattr(node, name, ()) if isinstance(each, ast.stmt | ast.ExceptHandler)
            ]


def _blank(match: re.Match[str]) -> str:
    """Replace a match by spaces. Line breaks stay, so that line numbers do not change."""
    return re.sub(r"[^\n]", " ", match[0])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
