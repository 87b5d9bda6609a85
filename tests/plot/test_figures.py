"""Figures in general: no pyplot, missing matplotlib, empty runs, hostile names, live runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tdcore.trial import Trial, create_trial
from tests.plot.runs import HOSTILE, layered, texts
from tests.trial.writer import RunWriter


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A run whose name and tensors have hostile names."""
    place = tmp_path_factory.mktemp("hostile")
    for rank in range(2):
        run = RunWriter(place, worker=f"worker_{rank}", world_size=2)
        for step in range(2):
            for name in HOSTILE:
                run.add(name, 1.0 + step, step=step, kind="loss")
        run.flush()
        run.end()
    return create_trial(place, HOSTILE[0])


@pytest.mark.parametrize("picture", ["layers", "loss"])
def test_hostile_names_are_drawn_as_texts(hostile: Trial, picture: str) -> None:
    figure = hostile.plot.layers(".") if picture == "layers" else hostile.plot.loss()
    check_texts(texts(figure), HOSTILE)


@pytest.mark.parametrize("name", HOSTILE[:4], ids=range(4))
@pytest.mark.parametrize("picture", ["histogram", "ranks", "compare"])
def test_the_hostile_name_of_a_tensor_is_drawn_as_text(hostile: Trial, picture: str, name: str) -> None:
    plot = hostile.plot
    figure = plot.compare(hostile, name) if picture == "compare" else getattr(plot, picture)(name)
    check_texts(texts(figure), [name, HOSTILE[0]])


def check_texts(found: str, names: Sequence[str]) -> None:
    assert "\x1b" not in found
    for name in names:
        assert name.split("\n")[0][:20] in found


def test_pictures_neither_import_pyplot_nor_change_settings(tmp_path: Path) -> None:
    layered(tmp_path, bad=(1, 2))
    code = (
        "import sys, matplotlib, tdcore as td\n"
        "def settings(): return {k: dict.get(matplotlib.rcParams, k) for k in matplotlib.rcParams}\n"
        "before = settings()\n"
        f"run = td.create_trial({str(tmp_path)!r})\n"
        "name = 'gradient/layers.1.weight'\n"
        "plot = run.plot\n"
        "for each in (plot.layers(), plot.loss(), plot.histogram(name), plot.ranks(name), plot.time(),\n"
        "             plot.compare(run, name)):\n"
        "    assert each._repr_png_().startswith(b'\\x89PNG')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert settings() == before\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_without_matplotlib_the_error_has_the_command_that_installs_it(tmp_path: Path) -> None:
    layered(tmp_path, layers=1, steps=1)
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import tdcore as td, tdcore.errors\n"
        f"run = td.create_trial({str(tmp_path)!r})\n"
        "print(run.plot)\n"
        "try: run.plot.layers()\n"
        "except tdcore.errors.ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 'pip install "tdcore-capture[plot]"' in done.stdout
    assert ".layers(), .loss(), .histogram(), .ranks(), .compare(), .time()>" in done.stdout


def test_a_run_without_rows_has_pictures_with_the_reason(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, pid=0)
    plot = create_trial(tmp_path).plot
    assert "the run has no tensors; the run is still being written" in texts(plot.layers())
    assert "the run has no losses" in texts(plot.loss())
    assert "the run has no times of steps" in texts(plot.time())
    run.end()
    assert "still being written" not in texts(plot.layers())


def test_a_picture_of_a_live_run_has_the_rows_of_this_moment(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    trial = create_trial(tmp_path)
    for step in range(3):
        run.add("loss", 1.0, step=step, kind="loss")
        run.flush()
        (axes,) = trial.plot.loss().axes
        assert np.size(axes.get_lines()[0].get_xdata()) == step + 1
    assert not trial.frozen
