"""tdcore report and td.write_report(): one file with the page and its data, or a summary in Markdown."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from typer.testing import CliRunner

import tdcore as td
from tdcore.cli.app import app
from tdcore.errors import ConfigError, RunNotFound
from tdcore.view.answers import OpenRun, answer
from tdcore.view.recording import record
from tests.trial.writer import RunWriter
from tests.view.contract import check
from tests.view.some_runs import HOSTILE, RUNS

TYPES = {"tensor": "TensorPage", "histogram": "TensorHistogram", "runs": "Runs"}
LIMIT_BYTES = 3_000_000


class Page(HTMLParser):
    """Collects the elements of a page, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        """Keep the text of an element."""
        self.texts.append((self._inside, data))

    def scripts(self) -> list[str]:
        """Return the texts of all scripts."""
        return [text for tag, text in self.texts if tag == "script" and text.strip()]

    def recorded(self) -> dict[str, Any]:
        """Return the answers in the page."""
        (packed,) = [text for text in self.scripts() if re.fullmatch(r"[A-Za-z0-9+/=]+", text)]
        return json.loads(gzip.decompress(b64decode(packed)))  # type: ignore[no-any-return]


def report_of(write: Callable[[Path], None], root: Path) -> Page:
    """Write a run and its report, and return the page."""
    write(root / "run")
    return Page(td.write_report(root / "run", root / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Return the report of a run without faults."""
    return report_of(RUNS["healthy"], tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_report_of_every_run_contains_answers_of_their_types(
    tmp_path: Path, healthy: Page, name: str
) -> None:
    recorded = (healthy if name == "healthy" else report_of(RUNS[name], tmp_path)).recorded()
    for key, found in recorded.items():
        request = key.partition("?")[0]
        check(found, TYPES.get(request, request.capitalize()), key)
    for page in ("runs", "overview", "rules", "layers", "tensors"):
        assert any(key.startswith(f"{page}?") for key in recorded)


def test_a_key_names_the_request_that_its_answer_answers(tmp_path: Path) -> None:
    RUNS["healthy"](tmp_path / "run")
    with closing(OpenRun("a run/of & mine", str(tmp_path / "run"))) as run:
        recorded = record(run)
        for key, found in recorded.items():
            request, _, query = key.partition("?")
            parameters = dict(parse_qsl(query, strict_parsing=bool(query)))
            if request == "runs":
                continue
            named = parameters["runs" if request in ("compare", "partings") else "run"]
            assert named == "a run/of & mine"
            assert list(parameters) == sorted(parameters)
            again = answer(run, request, parameters)
            for name in ("kind", "mode", "name", "tensor", "statistic", "worker"):
                if name in found:
                    assert again[name] == found[name], key
    first = next(key for key in recorded if key.startswith("layers?"))
    assert first == "layers?kind=gradient&mode=TRAIN&run=a%20run%2Fof%20%26%20mine&statistic=abs_mean"


def test_a_page_loads_nothing_and_runs_only_its_own_script(healthy: Page) -> None:
    page = healthy
    for tag, attributes in page.elements:
        assert "src" not in attributes, tag
        assert tag != "link" or attributes["href"] == "data:,"
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
    (policy,) = [attributes["content"] or "" for tag, attributes in page.elements
                 if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"]  # fmt: skip
    code = page.scripts()[-1]
    style = next(text for tag, text in page.texts if tag == "style")
    for name, text in (("script-src", code), ("style-src", style)):
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    names = [tag for tag, _ in page.elements]
    policy_at = names.index("meta") + 1
    assert policy_at < names.index("style") < names.index("script")


def test_hostile_texts_are_only_inside_of_the_packed_data(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    RUNS["hostile"](folder)
    text = td.write_report(folder, tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert "img" not in [tag for tag, _ in page.elements]
    assert "alert(1)" not in text.replace("onerror=alert(1)&gt;", "")  # the escaped title
    recorded = json.dumps(page.recorded(), ensure_ascii=False)
    assert json.dumps(f"{HOSTILE}0", ensure_ascii=False)[1:-1] in recorded


def test_a_large_run_fits_into_the_limit_and_the_report_states_what_it_contains(tmp_path: Path) -> None:
    def large(root: Path) -> None:
        run, random = RunWriter(root), np.random.default_rng(0)
        for step in range(40):
            for layer in range(300):
                gradient = random.normal(size=64).astype(np.float32) * np.float32(
                    0.9 ** (step * (layer == 77))
                )
                run.add(f"gradient/layer{layer}", gradient, step=step, kind="gradient", payload=step == 39)
        run.flush()
        run.end()

    page = report_of(large, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < LIMIT_BYTES
    recorded = page.recorded()
    tensors = {found["tensor"]["name"] for key, found in recorded.items() if key.startswith("tensor?")}
    assert 40 <= len(tensors) < 300
    assert "gradient/layer77" in tensors
    (overview,) = [found for key, found in recorded.items() if key.startswith("overview?")]
    assert any(f"{len(tensors)} of 300 tensors" in notice["text"] for notice in overview["notices"])


def test_a_small_limit_keeps_the_most_useful_answers(tmp_path: Path) -> None:
    RUNS["healthy"](tmp_path / "run")
    with closing(OpenRun("run", str(tmp_path / "run"))) as run:
        few, many = record(run, limit_bytes=1), record(run)
    assert {key.partition("?")[0] for key in few} == {"runs", "overview", "rules", "layers", "tensors"}
    assert set(few) < set(many)


def test_equal_runs_have_equal_reports(tmp_path: Path) -> None:
    RUNS["losses_only"](tmp_path / "run")
    first, second = (td.write_report(tmp_path / "run", tmp_path / name) for name in ("1.html", "2.html"))
    assert first.read_bytes() == second.read_bytes()


def test_the_summary_has_status_causes_findings_and_losses(tmp_path: Path) -> None:
    RUNS["nan_everywhere"](tmp_path / "run")
    text = td.write_report(tmp_path / "run", tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("## Training `run`\n\n**ended**, 4 TRAIN steps saved, 1 worker, ")
    assert "| FirstNonFinite" in text
    assert "| `loss` | TRAIN | NaN | NaN | NaN | xxxx 4 x NaN or infinite |" in text
    assert "<details><summary>Rules: " in text


def test_the_summary_has_the_first_last_and_smallest_loss_of_a_long_run(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    for step in range(500):
        run.add("loss", np.float64(0.001 if step == 250 else 500 - step), kind="loss", step=step)
    run.flush()
    run.end()
    text = td.write_report(tmp_path / "run", tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| `loss` | TRAIN | 500 | 1 | 0.001 |" in text


def test_hostile_texts_have_no_effect_in_the_summary(tmp_path: Path) -> None:
    RUNS["hostile"](tmp_path / "run")
    text = td.write_report(tmp_path / "run", tmp_path / "report.md").read_text(encoding="utf-8")
    outside = re.sub(r"(`+).*?\1", "", text)
    assert "<script" not in outside.replace("\\<", "")
    assert not re.search(r"(?<!\\)\[x\]", outside)
    assert "@all" not in outside
    assert not set("\x1b\u2028\u202e") & set(text)
    table = [line for line in text.splitlines() if line.startswith("|")]
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table}
    assert columns <= {6, 7}  # of findings, and of losses


def test_the_command_writes_a_page_and_names_it(tmp_path: Path) -> None:
    RUNS["losses_only"](tmp_path / "run")
    target = tmp_path / "out.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "-o", str(target)])
    assert result.exit_code == 0
    assert "out.html" in result.output.replace("\n", "")
    assert target.read_bytes().startswith(b"<!doctype html>")
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["out.html"]


@pytest.mark.parametrize("options", [["--format", "md"], ["--format", "md", "-o", "-"]])
def test_the_command_prints_markdown(tmp_path: Path, options: list[str]) -> None:
    RUNS["losses_only"](tmp_path / "run")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), *options])
    assert result.exit_code == 0
    assert result.output.startswith("## Training `run`")


def test_the_markdown_of_a_run_without_rows_has_the_reason(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.end()
    notes = {"collections": {}, "not_recorded": ["no step was saved: save_config selects no step"]}
    run.put("collections.json", {"format": 1, "attempts": {"0": notes}})
    text = td.write_report(tmp_path / "run", tmp_path / "report.md").read_text(encoding="utf-8")
    assert "no step was saved" in text


def test_what_cannot_be_written_or_read_is_an_error_before_the_rules_run(tmp_path: Path) -> None:
    RUNS["empty"](tmp_path / "run")
    with pytest.raises(ConfigError, match=r"the folder .*missing does not exist; give another file"):
        td.write_report(tmp_path / "run", tmp_path / "missing" / "report.html")
    with pytest.raises(ConfigError, match="it is a folder"):
        td.write_report(tmp_path / "run", tmp_path)
    with pytest.raises(ConfigError, match="format is 'pdf'; it is 'html' or 'md'"):
        td.write_report(tmp_path / "run", tmp_path / "x", format="pdf")  # type: ignore[arg-type]
    with pytest.raises(RunNotFound):
        td.write_report(tmp_path / "nothing", tmp_path / "report.html")
