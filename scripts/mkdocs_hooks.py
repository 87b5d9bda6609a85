"""Hooks of the documentation site (mkdocs.yml): the page of the command line, and links to other files.

reference/cli.md is generated from the commands at each build, so it is always up to date. A link from a page
to a file outside docs/, such as a result of a benchmark, is replaced by the path of the file; an image is
copied into the site.
"""

from __future__ import annotations

import importlib
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLI_PAGE = "reference/cli.md"
IMAGES = {".png", ".svg"}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?:#[^)\s]*)?\)")
_DOCUMENTED = re.compile(r"^::: (tdcore\.hooks\.pytorch\.\w+)$", re.MULTILINE)
_MARKUP = re.compile(r"\[/?[a-z]*\]")


def on_files(files: Any, config: Any) -> Any:
    """Add the page of the command line, and the images of pages that are outside docs/."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, CLI_PAGE, content=cli_page()))
    for page in list(files.documentation_pages()):
        for match in _LINK.finditer(page.content_string):
            outside = _outside(page.src_uri, match["target"])
            if outside is not None and match["image"] and files.get_file_from_path(_asset(outside)) is None:
                files.append(File.generated(config, _asset(outside), abs_src_path=str(ROOT / outside)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to files outside docs/, and write full names of the documented classes."""

    def replaced(match: re.Match[str]) -> str:
        outside = _outside(page.file.src_uri, match["target"])
        if outside is None:
            return match[0]
        if match["image"]:
            target = posixpath.relpath(_asset(outside), posixpath.dirname(page.file.src_uri) or ".")
            return f"![{match['text']}]({target})"
        text = match["text"].strip("`")
        return f"`{outside}`" if text in outside else f"{match['text']} (`{outside}`)"

    text = _DOCUMENTED.sub(lambda match: f"::: {defined_at(match[1])}", _LINK.sub(replaced, markdown))
    # The text C[l][p] on pages of rules would be a reference link in Markdown.
    return text.replace("][", r"]\[") if page.file.src_uri.startswith("rules/TDC") else text


def cli_page() -> str:
    """The page of the command line: each command with its help, arguments and options."""
    import typer.main

    from tdcore.cli.app import app

    lines = [
        "# Command line",
        "",
        "Each command prints its help with `--help`. `tdcore run` is described in",
        "[Record a script without changing it](../run.md).",
        "",
    ]
    lines += _command("tdcore", typer.main.get_command(app))
    return "\n".join(lines)


def defined_at(name: str) -> str:
    """Full name of the definition of a public name that a module imports under a condition.

    Without this, the site would describe the class that replaces Hook under TDCORE_DISABLED.
    """
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    return f"{found.__module__}.{found.__qualname__}"


def _command(path: str, command: Any) -> list[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    lines = [f"## {path}", "", *_help(_plain(command.help or command.short_help or "")), ""]
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    lines += ["```text", usage, "```", ""]
    rows = [row for row in map(_row, command.params) if row]
    if rows:
        lines += ["| Argument or option | Meaning | Default |", "|---|---|---|", *rows, ""]
    if command.epilog:
        lines += [_plain(command.epilog), ""]
    for name, each in sorted(getattr(command, "commands", {}).items()):
        lines += _command(f"{path} {name}", each)
    return lines


def _help(text: str) -> list[str]:
    """Lines of a command's help, with its examples as code and their explanations as comments."""
    before, *examples = re.split(r"^Examples?:", text, maxsplit=1, flags=re.MULTILINE)
    lines = [before.strip(), ""]
    if examples:
        joined = re.sub(r"(?<=\S)\n(?! *\n) *(?=\S)", " ", examples[0])  # a blank line separates two examples
        commands = [line.strip() for line in joined.splitlines() if line.strip()]
        lines += ["```sh", *(re.sub(r"(?<=\S) {2,}(?=\S)", "  # ", line) for line in commands), "```", ""]
    return lines


def _row(parameter: Any) -> str:
    if getattr(parameter, "hidden", False):
        return ""
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    default = parameter.show_default if isinstance(getattr(parameter, "show_default", None), str) else None
    if default is None and parameter.default not in (None, False, (), [], ""):
        default = str(getattr(parameter.default, "value", parameter.default))
    help_text = (
        _plain(getattr(parameter, "help", None) or "")
        .replace("|", r"\|")
        .replace("\n", " ")
        .replace("<", "&lt;")
    )
    return f"| {names} | {help_text} | {f'`{default}`' if default else ''} |"


def _plain(text: str) -> str:
    """Help without the markup of rich."""
    return _MARKUP.sub("", text).replace("\b", "").strip()


def _outside(page: str, target: str) -> str | None:
    """Path from the root of the repository of a link that leads out of docs/; None for any other link."""
    if "://" in target or target.startswith(("#", "/", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith("docs/") or not (ROOT / path).exists() else path


def _asset(outside: str) -> str:
    return f"assets/{posixpath.basename(outside)}"
