"""TDCORE_DISABLED=1: every function that records does nothing, and the capture engine is not loaded."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tdcore.config.settings import VARIABLES, disabled, log_level
from tdcore.errors import ConfigError
from tdcore.hooks import inert
from tdcore.hooks.pytorch.hook import Hook
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[1]

BEGIN = """
import sys, torch, tdcore as td
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = criterion(model(torch.ones(2, 4)), torch.zeros(2, 2))
        loss.backward()
        optimizer.step()
    return loss
"""
HOOK = """
from tdcore.hooks.pytorch import Hook
ring = td.RingConfig(ring_bytes=1 << 20)
hook = Hook("run", save_config=td.SaveConfig(save_interval=1), save_all=True, ring=ring)
hook.get_collection("mine").include("relu")
hook.add_collection(td.CollectionConfig(name="other", include_regex="x"))
hook.set_mode(td.modes.TRAIN)
hook.set_epoch(0)
hook.register_module(model)
hook.register_loss(criterion)
hook.register_optimizer(optimizer)
hook.load_state_dict({"step": 7, "mode_steps": {"TRAIN": 7}})
train()
hook.save_scalar("lr", 0.1)
hook.save_tensor("mine", torch.ones(3), collections_to_write="mine")
hook.record_tensor_value("loss", train())
assert hook.state_dict()["step"] == 7
assert (hook.mode, hook.global_step) == (td.modes.TRAIN, -1)
assert hook.counters().captures == 0
assert hook.close() is None
"""
SUBCLASS = """
from tdcore.hooks.pytorch import Hook
class Mine(Hook):
    def forward_hook(self, module, inputs, outputs):
        raise AssertionError
with Mine("run", save_all=True) as hook:
    hook.register_hook(model)
    train()
"""
WATCH = """
with td.watch(model, "run", loss=criterion, optimizer=optimizer, save_interval=1):
    train()
"""
LIGHTNING = """
from tdcore.hooks.lightning import HookCallback
import lightning.pytorch as pl
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model
    def training_step(self, batch, number):
        return self.net(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
callback = HookCallback("run", save_all=True)
trainer = pl.Trainer(max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                     enable_model_summary=False, callbacks=[callback], accelerator="cpu")
trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4))
callback.hook.save_scalar("after", 1)
"""
TRANSFORMERS = """
from transformers import Trainer, TrainingArguments
from tdcore.hooks.transformers import HookCallback
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model
    def forward(self, x):
        return {"loss": self.net(x).square().mean()}
callback = HookCallback("run", save_all=True)
arguments = TrainingArguments("out", max_steps=2, report_to=[], save_strategy="no", use_cpu=True)
Trainer(Net(), arguments, train_dataset=[{"x": torch.ones(4)}] * 8, callbacks=[callback]).train()
callback.hook.save_scalar("after", 1)
"""
END = """
import os
assert not model._forward_pre_hooks and not model._forward_hooks and not criterion._forward_hooks
assert not any(one.__class__.__module__.startswith("tdcore") for one in vars(nn.Module).values())
assert "_core" not in "".join(name for name in sys.modules if name.startswith("tdcore"))
assert "tdcore.session.session" not in sys.modules and "tdcore.hooks.base" not in sys.modules
assert not os.path.exists("run") and not os.path.exists("runs")
print("done")
"""


def python(folder: Path, *arguments: str, value: str = "1") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TDCORE_DISABLED": value}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.parametrize("script", [HOOK, SUBCLASS, WATCH], ids=["hook", "subclass", "watch"])
def test_a_script_runs_as_without_tdcore_and_loads_nothing_of_it(tmp_path: Path, script: str) -> None:
    done = python(tmp_path, "-c", BEGIN + script + END)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("script", [LIGHTNING, TRANSFORMERS], ids=["lightning", "transformers"])
def test_a_callback_of_a_trainer_does_nothing(tmp_path: Path, script: str) -> None:
    done = python(tmp_path, "-c", BEGIN + script + END)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


def test_tdcore_run_runs_the_script_and_records_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGIN + "train()\nassert __name__ == '__main__'\n" + END)
    done = python(tmp_path, "-m", "tdcore.run", "--rule", "no_such_rule", "train.py")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == "tdcore run: TDCORE_DISABLED is set: nothing is recorded\n"


def test_a_hook_that_was_imported_before_the_switch_records_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch import nn

    monkeypatch.setenv("TDCORE_DISABLED", "yes")
    hook = Hook(str(tmp_path / "run"), save_all=True)
    net, loss = nn.Linear(2, 2), nn.MSELoss()
    hook.register_module(net)
    hook.register_loss(loss)
    assert not net._forward_pre_hooks
    assert not loss._forward_hooks
    hook.save_scalar("x", 1.0)
    assert hook.close() is None
    assert not (tmp_path / "run").exists()


def test_a_value_that_is_neither_on_nor_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TDCORE_DISABLED must be 1 .* or 0, got 'maybe'"):
        disabled({"TDCORE_DISABLED": "maybe"})
    (tmp_path / "train.py").write_text("print('started')")
    done = python(tmp_path, "-m", "tdcore.run", "train.py", value="maybe")
    assert (done.returncode, done.stdout) == (2, "")
    assert "TDCORE_DISABLED" in done.stderr


@pytest.mark.parametrize(
    ("value", "off"), [("1", True), ("TRUE", True), ("on", True), ("", False), ("0", False)]
)
def test_the_switch_reads_usual_words(value: str, off: bool) -> None:
    assert disabled({"TDCORE_DISABLED": value}) is off
    assert not disabled({})


def test_the_switched_off_hook_has_every_public_name_of_the_hook() -> None:
    def public(of: type) -> set[str]:
        return {name for name in dir(of) if not name.startswith("_")}

    assert public(Hook) <= public(inert.Hook) | {"framework"}
    for name in public(Hook):
        if inspect.isfunction(getattr(Hook, name)):
            theirs = inspect.signature(getattr(Hook, name)).parameters
            ours = inspect.signature(getattr(inert.Hook, name)).parameters
            takes_all = any(each.kind is each.VAR_KEYWORD for each in ours.values())
            assert takes_all or list(theirs) == list(ours), name


@pytest.mark.parametrize(
    ("level", "printed"),
    [("ERROR", ""), ("WARNING", "careful\n"), ("info", "INFO tdcore: by the way\nWARNING tdcore: careful\n")],
)
def test_the_log_level_comes_from_the_environment(tmp_path: Path, level: str, printed: str) -> None:
    code = (
        "import tdcore, logging as l; t = l.getLogger('tdcore'); t.info('by the way'); t.warning('careful')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TDCORE_LOG_LEVEL": level}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == printed


def test_a_log_level_that_is_none_is_told_and_ends_nothing() -> None:
    with pytest.raises(ConfigError, match="TDCORE_LOG_LEVEL must be one of DEBUG, INFO"):
        log_level({"TDCORE_LOG_LEVEL": "loud"})
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TDCORE_LOG_LEVEL": "loud"}
    done = subprocess.run(
        [sys.executable, "-c", "import tdcore"], env=environment, capture_output=True, text=True, check=True
    )
    assert "TDCORE_LOG_LEVEL must be one of" in done.stderr


def test_the_page_names_every_variable_that_is_read() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    for each in VARIABLES:
        assert f"| `{each.name}` | {each.values} | {each.default} | {each.effect} |" in page
    found = {
        name
        for folder in ("tdcore", "hooks", "rules", "csrc")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".hpp") and path.name != "settings.py"
        for name in read_in(path.read_text())
    }
    assert found <= {each.name for each in VARIABLES}
    assert found >= {"TDCORE_SPOOL", "TDCORE_SIMD", "TDCORE_CONFIG"}


def read_in(source: str) -> set[str]:
    import re

    return set(
        re.findall(r'(?:environ[^\n]{0,20}|getenv\(|text_of\(|VARIABLES = \()"(TDCORE_[A-Z_]+)"', source)
    )


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o077, 0o600, 0o700), (0o002, 0o664, 0o775)])
def test_files_of_a_run_have_the_mode_that_the_umask_gives(
    tmp_path: Path, umask: int, file: int, folder: int
) -> None:
    code = f"""
import os, torch, tdcore as td
from torch import nn
os.umask({umask})
model = nn.Linear(2, 2)
hook = td.watch(model, "run", save_interval=1, reduction_config=None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
hook.close()
"""
    done = python(tmp_path, "-c", code, value="0")
    assert done.returncode == 0, done.stderr
    found = list((tmp_path / "run").rglob("*"))
    assert {oct(each.stat().st_mode & 0o7777) for each in found if each.is_file()} == {oct(file)}
    assert {oct(each.stat().st_mode & 0o7777) for each in found if each.is_dir()} == {oct(folder)}
    assert any(each.suffix == ".safetensors" for each in found)
