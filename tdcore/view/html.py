"""html_report: one HTML file that contains the page and its data, and loads nothing. Any thread."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from tdcore.errors import UnsupportedFeature
from tdcore.text.quoting import quoted
from tdcore.text.short_repr import cut

__all__ = ["html_report"]

_STYLE = '<link rel="stylesheet" href="view.css">'
_SCRIPT = '<script src="view.js"></script>'
_TITLE = "<title>tdcore</title>"
_CHARSET = '<meta charset="utf-8">'
_ENDS = re.compile(r"</(script|style)|<!--|[\r\0]", re.IGNORECASE)


def html_report(title: str, recorded: Mapping[str, Any]) -> bytes:
    """The report as HTML in UTF-8.

    The data is base64, so that no text of a run is part of the HTML except the escaped title. The policy of
    the page allows its own script and style by their hashes, and nothing else.

    Args:
        title: Title of the page.
        recorded: Answers by key.

    Raises:
        UnsupportedFeature: The built page is not installed.
    """
    page, style, script = (_built(name) for name in ("index.html", "view.css", "view.js"))
    for name, text in (("view.css", style), ("view.js", script)):
        if _ENDS.search(text):
            raise UnsupportedFeature(
                f"{name} contains characters that end an element of HTML; build it again"
            )
    data = json.dumps(recorded, allow_nan=False, separators=(",", ":")).encode()
    packed = b64encode(gzip.compress(data, mtime=0)).decode("ascii")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    for old, new in (
        (_CHARSET, f'{_CHARSET}\n    <meta http-equiv="Content-Security-Policy" content="{policy}">'),
        (_TITLE, f"<title>{escape(quoted(cut(title)))}</title>"),
        (_STYLE, f"<style>{style}</style>"),
        (
            _SCRIPT,
            f'<script type="application/json" id="recorded">{packed}</script>\n    <script>{script}</script>',
        ),
    ):
        if page.count(old) != 1:
            raise UnsupportedFeature(f"index.html of the page does not contain {old} once; build it again")
        page = page.replace(old, new)
    return page.encode()


def _built(name: str) -> str:
    """A file of the built page."""
    try:
        return files("tdcore.view").joinpath("static").joinpath(name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UnsupportedFeature(
            f"the page of tdcore view is not installed: {name} is missing; in a checkout, run `make web`"
        ) from error


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}"
