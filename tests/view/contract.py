"""The types of web/src/contract.ts, and a check that a value has one of them.

Only the parts of TypeScript that the file uses are parsed: interfaces with `readonly` members, `extends`,
type aliases, arrays, tuples, unions, texts, and Readonly<Record<string, T>>.
"""

from __future__ import annotations

import re
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CONTRACT = Path(__file__).resolve().parents[2] / "web" / "src" / "contract.ts"
DTYPES = {"f32": "<f4", "f64": "<f8", "i32": "<i4", "u8": "u1"}


def unpacked(packed: dict[str, str]) -> npt.NDArray[Any]:
    """Return the array of a Packed value, numbers in double precision."""
    return np.frombuffer(b64decode(packed["base64"], validate=True), DTYPES[packed["type"]]).astype(
        np.float64
    )


@cache
def _source() -> str:
    text = re.sub(r"/\*.*?\*/", "", CONTRACT.read_text(), flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text)


@cache
def _aliases() -> dict[str, str]:
    found = dict(re.findall(r"export type (\w+) =\s*([^;]+);", _source()))
    return {name: " ".join(text.split()) for name, text in found.items()}


@cache
def members(interface: str) -> dict[str, str]:
    """Return the members of an interface, and their types as text."""
    match = re.search(rf"export interface {interface}(?: extends (\w+))? {{(.*?)\n}}", _source(), re.DOTALL)
    assert match is not None, f"contract.ts has no interface {interface}"
    inherited = members(match[1]) if match[1] else {}
    return inherited | _members(match[2])


def _members(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in _split(text, ";"):
        if part:
            name, _, kind = part.removeprefix("readonly ").partition(":")
            found[name.strip()] = " ".join(kind.split())
    return found


def _split(text: str, separator: str) -> list[str]:
    """Return the parts of a text between separators that are outside of all brackets."""
    parts, depth = [""], 0
    for at, character in enumerate(text):
        depth += (character in "{[<(") - (character in "}])" or (character == ">" and text[at - 1] != "="))
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def check(value: Any, kind: str, where: str = "answer") -> None:
    """Fail unless the value has the type."""
    kind = kind.strip().removeprefix("readonly ")
    options = [option for option in _split(kind, "|") if option]
    if len(options) > 1:
        assert any(_has(value, option) for option in options), f"{where} is {value!r:.200}, expected {kind}"
    elif kind.endswith("[]"):
        assert isinstance(value, list), f"{where} is {value!r:.200}, expected {kind}"
        for at, each in enumerate(value):
            check(each, kind[:-2], f"{where}[{at}]")
    elif kind.startswith("Readonly<Record<string,"):
        assert isinstance(value, dict), f"{where} is {value!r:.200}, expected {kind}"
        for name, each in value.items():
            check(each, kind[len("Readonly<Record<string,") : -2], f"{where}[{name!r}]")
    elif kind.startswith("["):
        inner = _split(kind[1:-1], ",")
        assert isinstance(value, list), f"{where} is {value!r:.200}, expected {kind}"
        assert len(value) == len(inner), f"{where} is {value!r:.200}, expected {kind}"
        for each, part in zip(value, inner, strict=True):
            check(each, part, where)
    elif kind.startswith("{"):
        _check_members(value, _members(kind[1:-1]), where)
    elif kind in _aliases():
        check(value, _aliases()[kind], where)
    elif kind == "Packed":
        assert set(value) == {"type", "base64"}, where
        unpacked(value)
    elif kind.isidentifier() and kind[0].isupper():
        _check_members(value, members(kind), where)
    else:
        assert _has(value, kind), f"{where} is {value!r:.200}, expected {kind}"


def _check_members(value: Any, wanted: dict[str, str], where: str) -> None:
    assert isinstance(value, dict), f"{where} is {value!r:.200}, expected an object"
    assert set(value) == set(wanted), f"{where} differs in {set(value) ^ set(wanted)}"
    for name, kind in wanted.items():
        check(value[name], kind, f"{where}.{name}")


def _has(value: Any, kind: str) -> bool:
    if kind.startswith('"'):
        return bool(value == kind[1:-1])
    if kind in ("string", "number", "boolean", "null"):
        if kind == "number":
            return type(value) in (int, float) and bool(np.isfinite(value))
        return isinstance(value, {"string": str, "boolean": bool, "null": type(None)}[kind])
    try:
        check(value, kind)
    except AssertionError:
        return False
    return True
