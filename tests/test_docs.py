"""The Python examples in README and docs run from top to bottom and behave as the pages describe."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.s3.servers import Server
from tests.trial.sharding import add_part, rows, workers

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(x)
        return out


def train(model: nn.Module, criterion: nn.Module, steps: int = 130) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(torch.randn(8, 4)), torch.randint(0, 3, (8,))).backward()
        optimizer.step()


def blocks(path: str) -> list[str]:
    return BLOCK.findall((ROOT / path).read_text())


def test_the_ten_lines_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("README.md")
    before_reading, reading = code.split("run = td.create_trial", 1)
    names: dict[str, Any] = {"model": Net(), "criterion": nn.CrossEntropyLoss(), "train": train}
    exec(before_reading, names)
    names["hook"].close()
    exec("run = td.create_trial" + reading, names)
    assert names["run"].tensor("gradient/Net_fc.weight").value(120).shape == (3, 4)
    assert names["run"].stats("^gradient/", steps=range(0, 500, 10)).num_rows == 2 * 13


def test_the_lines_about_buckets_run(moto: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dataclasses.replace(moto.client(), bucket="my-bucket").request("PUT", "").status == 200
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto.endpoint)
    monkeypatch.setenv("TDCORE_SPOOL", str(tmp_path / "spool"))
    (code,) = blocks("docs/s3.md")
    before_reading, reading = code.split("run = td.create_trial", 1)
    names: dict[str, Any] = {"Hook": Hook, "td": td}
    exec(before_reading, names)
    model, criterion = Net(), nn.CrossEntropyLoss()
    names["hook"].register_module(model)
    names["hook"].register_loss(criterion)
    train(model, criterion, 21)
    names["hook"].close()
    exec("run = td.create_trial" + reading, names)
    assert names["run"].steps() == [0, 10, 20]


def test_the_lines_about_resuming_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = (block for block in blocks("docs/pytorch.md") if "hook.state_dict()" in block)
    saving, loading = code.split("saved = ", 1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Hook("runs/demo", flusher="thread") as hook:
        hook.register_module(model)
        train(model, nn.CrossEntropyLoss(), 3)
        exec(saving, {"torch": torch, "model": model, "optimizer": optimizer, "hook": hook})
    with Hook("runs/demo", flusher="thread") as hook:
        exec("saved = " + loading, {"torch": torch, "hook": hook})
        assert hook.global_step == 2


def test_every_option_of_a_bucket_is_in_its_page() -> None:
    page = (ROOT / "docs/s3.md").read_text()
    spelled = {"tags": "tag.NAME=VALUE", "spool_bytes": "spool_gib"}
    missing = [
        field.name
        for field in dataclasses.fields(td.S3Options)
        if f"`{spelled.get(field.name, field.name)}`" not in page
    ]
    assert missing == []


@pytest.mark.parametrize("number", range(4))
def test_the_examples_for_other_readers_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, criterion = Net(), nn.CrossEntropyLoss()
    with Hook("runs/example", save_config=td.SaveConfig(save_interval=5), save_all=True) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        train(model, criterion, 11)
    names: dict[str, Any] = {}
    exec(blocks("docs/reading.md")[number], names)
    result = next(names[name] for name in ("losses", "worst", "rows", "tensors") if name in names)
    assert len(result) > 0


def test_the_examples_about_many_workers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = np.arange(8.0).reshape(4, 2)
    for rank, (run, box) in enumerate(zip(workers(Path("runs/sharded"), 4), rows((4, 2), 4), strict=True)):
        add_part(run, "fc.weight", values, box)
        run.add("gradient/fc.bias", np.full(2, 9.0 if rank == 2 else 1.0), step=0, kind="gradient")
        run.flush()
        run.end()
    names: dict[str, Any] = {}
    exec(blocks("docs/reading.md")[4], names)
    assert names["whole"].tolist() == values.tolist()
    assert names["part"].tolist() == [[2.0, 3.0]]
    assert names["where"][3] == ("worker_3", (3, 0), (1, 2))
    assert names["norms"].column("l2").to_pylist() == [pytest.approx(np.linalg.norm(values))]
    assert names["table"].column("count").to_pylist() == [8]
    assert names["outliers"] == ["worker_2"]


def test_the_examples_about_rules_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, criterion = Net(), nn.CrossEntropyLoss()
    with Hook("runs/demo", rules=["vanishing_gradient"]) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        train(model, criterion, 3)
    names: dict[str, Any] = {"model": Net(), "criterion": criterion, "train": train, "__name__": __name__}
    judging, capturing, own = blocks("docs/rules/running.md")
    exec(judging, names)
    assert names["report"].verdicts[0].text == "no issue"
    exec(capturing, names)
    assert [verdict.rule for verdict in names["report"].verdicts] == [
        "VanishingGradient",
        "LossNotDecreasing",
    ]
    exec(own, names)
    assert [verdict.text for verdict in names["report"].verdicts] == ["no issue"]


def test_the_file_of_rules_in_its_page_is_read(tmp_path: Path) -> None:
    from tdcore.rules.config_file import _OPTIONS, load_rules_config

    page = (ROOT / "docs/rules/running.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "rules.yaml").write_text(text)
    config = load_rules_config(tmp_path / "rules.yaml")
    assert len(config.rules) == 3
    assert [action.name for action in config.actions] == ["stop"]
    assert [key for key in _OPTIONS if f"`{key}`" not in page] == []


def test_the_command_lines_about_rules_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import typer.main

    from tdcore.cli.app import app

    page = (ROOT / "docs/rules/running.md").read_text()
    (text,) = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    rules = typer.main.get_command(app).commands["rules"]  # type: ignore[attr-defined]  # a group has them
    for line in text.splitlines():
        _, _, command, *arguments = shlex.split(line)
        rules.commands[command].make_context(command, arguments)


def test_the_page_about_times_of_steps_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reading, naming = blocks("docs/step-times.md")
    model = Net()
    hook = Hook("runs/demo", flusher="thread")
    hook.register_module(model)
    names: dict[str, Any] = {"hook": hook, "model": model, "batches": iter([torch.randn(8, 4)])}
    exec(naming, names | {"upload": lambda state: None})
    train(model, nn.CrossEntropyLoss(), steps=6)
    hook.close()
    exec(reading, names)
    assert names["times"].num_rows == 6
    assert list(names["slow"].columns)[:2] == ["mode", "mode_step"]


def test_the_examples_about_notebooks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("runs/demo", "runs/other"):
        model, criterion = Net(), nn.CrossEntropyLoss()
        with Hook(place, save_config=td.SaveConfig(save_interval=5), save_all=True) as hook:
            hook.register_module(model)
            hook.register_loss(criterion)
            train(model, criterion, 21)
            with torch.no_grad():
                model.eval()(torch.randn(8, 4))
    names: dict[str, Any] = {}
    for block in blocks("docs/notebooks.md"):
        exec(block, names)
    figures = [names[each] for each in ("picture", "gradients", "weights", "changes", "evaluation", "loss")]
    figures += [names[each] for each in ("values", "workers", "both", "times")]
    assert all(figure.axes for figure in figures)
    assert (tmp_path / "layers.png").stat().st_size > 1000


def test_the_lines_about_exports_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exporting, live = blocks("docs/export.md")
    with Hook("runs/demo", save_config=td.SaveConfig(save_interval=1)) as hook:
        model, criterion = Net(), nn.CrossEntropyLoss()
        hook.register_module(model)
        hook.register_loss(criterion)
        train(model, criterion, steps=3)
    names: dict[str, Any] = {}
    exec(exporting, names)
    assert (names["done"].rows, names["done"].values) == (3, 3)
    pytest.importorskip("tensorboard")
    exec(live, names)
    names["hook"].close()
    assert names["hook"].config.tensorboard_folder == "tb/demo"
