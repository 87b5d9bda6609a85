"""Make the pictures of the documentation, docs/assets/*.svg, from the output of real commands.

    python scripts/make_screenshots.py    needs torch and scikit-learn; takes about half a minute

The training is that of docs/tutorials/find-a-fault.md. The pictures contain no link to another host.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
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


def main() -> int:
    page = (ROOT / "docs" / "tutorials" / "find-a-fault.md").read_text()
    script = re.search(r'^```python title="train.py"\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    assert script is not None, "the page has no block with the title train.py"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(script[1])
        tdcore(folder, "run", "--quiet", "train.py")
        for name, arguments in PICTURES.items():
            picture(name, arguments, tdcore(folder, *arguments))
    return 0


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
    raise SystemExit(main())
