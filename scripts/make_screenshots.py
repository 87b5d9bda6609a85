"""Make the pictures of the documentation in docs/assets: *.svg of commands, view-*.png of pages of the view.

    python scripts/make_screenshots.py             all pictures; takes some minutes
    python scripts/make_screenshots.py commands    or only these
    python scripts/make_screenshots.py view
    python scripts/make_screenshots.py studies     those of the case studies, in docs/assets/studies
    python scripts/make_screenshots.py class_imbalance    or of one study

Needs torch and scikit-learn, and for the pages Starlette, uvicorn, playwright and the program chromium. The
commands show the training of docs/tutorials/find-a-fault.md, and the pages show the faulty run of the demo.
The pictures contain no link to another host.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "assets"
WIDTH = 110
PICTURES = {
    "rules-run": ["rules", "run", "runs/train", "-r", "vanishing_gradient", "-r", "loss_not_decreasing"],
    "show": ["show", "runs/train", "gradient/.*weight"],
}


VIEWS = {
    "view-overview": "overview?run=faulty",
    "view-layers": "layers?run=faulty&kind=gradient",
    "view-tensor": "tensor?run=faulty&name=gradient/SigmoidNet_head.weight",
}
VIEW_SIZE = {"width": 1280, "height": 720}


def main(chosen: list[str]) -> int:
    makers: dict[str, Callable[[], None]] = {"commands": make_commands, "view": make_view}
    for name, make in makers.items():
        if not chosen or name in chosen:
            make()
    for script in sorted((ROOT / "examples" / "studies").glob("*.py")):
        if not chosen or "studies" in chosen or script.stem in chosen:
            make_study(script)
    return 0


def make_commands() -> None:
    page = (ROOT / "docs" / "tutorials" / "find-a-fault.md").read_text()
    script = re.search(r'^```python title="train.py"\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    assert script is not None, "the page has no block with the title train.py"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(script[1])
        tdcore(folder, "run", "--quiet", "train.py")
        for name, arguments in PICTURES.items():
            picture(name, arguments, tdcore(folder, *arguments))


def make_view() -> None:
    from playwright.sync_api import sync_playwright

    from tests.view.view_server import view_server
    from tests.waiting import wait_until

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program is not None, "there is no chromium; install it with: apt-get install chromium"
    with tempfile.TemporaryDirectory() as folder:
        tdcore(folder, "demo", "--out", "runs/demo")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        with view_server(f"{folder}/runs/demo") as server, sync_playwright() as driver:
            wait_until(
                lambda: server.get("rules", run="faulty").json["judged"] == "now", "the run was judged"
            )
            browser = driver.chromium.launch(executable_path=program, args=flags)
            tab = browser.new_page(viewport=VIEW_SIZE)  # type: ignore[arg-type]
            for name, address in VIEWS.items():
                tab.goto(f"{server.url}#/{address}")
                tab.locator("main canvas").first.wait_for()
                tab.wait_for_timeout(1000)
                # The folder of this run is of no interest.
                tab.evaluate("document.querySelectorAll('.path').forEach(each => each.remove())")
                tab.screenshot(path=ASSETS / f"{name}.png")
            browser.close()


def make_study(script: Path) -> None:
    """Run a case study, and keep the pictures that it writes into its folder."""
    (ASSETS / "studies").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, script, folder], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
        )
        for picture in Path(folder).glob("*.png"):
            shutil.copy(picture, ASSETS / "studies" / picture.name)


def tdcore(folder: str, *arguments: str) -> str:
    """Output of a command of tdcore on a terminal with colours."""
    environment = {**os.environ, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tdcore.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def picture(name: str, arguments: list[str], output: str) -> None:
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(f"$ tdcore {' '.join(arguments)}", style="bold"))
    console.print(Text.from_ansi(output.rstrip()))
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("<!-- Generated with Rich https://www.textualize.io -->", "")
    form = form.replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace")
    svg = console.export_svg(title="tdcore", code_format=form, unique_id=f"tdcore-{name}")
    ASSETS.mkdir(exist_ok=True)
    (ASSETS / f"{name}.svg").write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main(sys.argv[1:]))
