"""Notebooks run in a real kernel without a screen, and display runs and pictures."""

from __future__ import annotations

import base64
import importlib
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient

nbformat: Any = importlib.import_module("nbformat")  # only parts of it have types

ROOT = Path(__file__).resolve().parents[2]


def executed(notebook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Execute a notebook in a new folder, and return the outputs of its code cells."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def forms(outputs: list[Any]) -> list[str]:
    """The best form of each displayed value: image, HTML or text."""
    displayed = [each.data for each in outputs if each.output_type in ("display_data", "execute_result")]
    order = ("image/png", "text/html", "text/plain")
    return [next(form for form in order if form in data) for data in displayed]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_example_notebook_displays_the_run_and_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(ROOT / "examples/look_at_a_run.ipynb", as_version=4)
    nbformat.validate(notebook)
    found = executed(notebook, tmp_path, monkeypatch)
    assert [forms(outputs) for outputs in found] == [
        [],
        ["text/html"],
        ["image/png"],
        ["text/html"],
        ["image/png"],
        ["image/png"],
        ["text/html"],
        ["image/png"],
    ]
    image = base64.b64decode(found[2][0].data["image/png"])
    assert image.startswith(b"\x89PNG")
    assert len(image) > 10_000
    assert "VanishingGradient" in found[1][-1].data["text/html"]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("setting", ["", "%matplotlib inline"])
def test_a_figure_is_displayed_once_with_and_without_the_inline_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    cells = [
        setting,
        "from pathlib import Path\nfrom tests.plot.runs import layered\nrun = layered(Path('run'))",
        "run.plot.layers()",
        "figure = run.plot.loss()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    found = executed(notebook, tmp_path, monkeypatch)
    assert [forms(outputs) for outputs in found] == [[], [], ["image/png"], []]
