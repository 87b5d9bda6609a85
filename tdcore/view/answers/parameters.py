"""Parameters: the texts of a request, converted to values and checked. Plain values; any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tdcore.errors import ConfigError
from tdcore.text.did_you_mean import did_you_mean
from tdcore.text.short_repr import cut

__all__ = ["Parameters"]

_LISTED = 12  # maximum number of possible values in a message
_MOST_COLUMNS = 4096
_LARGEST = 2**62


class Parameters:
    """The parameters of one request. An empty text counts as not given.

    Args:
        request: Name of the request, for messages.
        given: Names and texts.
        known: Names that the request has.

    Raises:
        ConfigError: A name is not known; and in each method, a value is not possible.
    """

    def __init__(self, request: str, given: Mapping[str, str], known: Iterable[str]) -> None:
        self._request = request
        self._given = {name: text for name, text in given.items() if text}
        names = sorted(known)
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"{request!r} has no parameter {cut(name)!r}; it has {', '.join(names) or 'none'}"
                )

    def text(self, name: str, default: str = "") -> str:
        """A text."""
        return self._given.get(name, default)

    def choice(self, name: str, possible: Sequence[str], default: str | None = None) -> str:
        """One of the possible texts. default: None: the first one, or "" if nothing is possible."""
        text = self._given.get(name)
        if text is None:
            return (possible[0] if possible else "") if default is None else default
        if text not in possible:
            raise self.wrong(name, text, _listed(possible, text))
        return text

    def number(self, name: str, default: int | None, least: int = 0, most: int = _LARGEST) -> int | None:
        """A whole number from `least` to `most`."""
        text = self._given.get(name)
        if text is None:
            return default
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
        if value is None or not least <= value <= most:
            raise self.wrong(name, text, f"it is a whole number from {least:,} to {most:,}")
        return value

    def columns(self, default: int) -> int:
        """The number of pixel columns."""
        return self.number("columns", default, 1, _MOST_COLUMNS) or default

    def steps(self) -> tuple[int | None, int | None]:
        """The range of steps, `from` and `to`, both included; None for no limit."""
        low, high = self.number("from", None), self.number("to", None)
        if low is not None and high is not None and low > high:
            raise self.wrong("to", str(high), f"it must be {low:,} or more, the value of 'from'")
        return low, high

    def wrong(self, name: str, text: str, possible: str) -> ConfigError:
        """The error for a value that is not possible. possible: a sentence."""
        return ConfigError(f"{name} of {self._request!r} is {cut(text)!r}; {possible}")


def _listed(possible: Sequence[str], text: str) -> str:
    if not possible:
        return "this run has no possible value"
    more = len(possible) - _LISTED
    there = ", ".join(cut(each) for each in possible[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")
    return f"possible: {there}{did_you_mean(text, possible[:5000])}"
