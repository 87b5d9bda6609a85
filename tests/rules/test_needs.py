"""The declared needs of each rule are sufficient:

Hook(rules=[rule]) records a run that the rule can judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore import modes
from tdcore.hooks.pytorch import Hook
from tdcore.rules import RULES, Status, run
from tdcore.rules.base import judges_tensors

TREE = {"Tree": [0, 0, 0], "ID": [0, 1, 2], "Yes": [1, -1, -1], "No": [2, -1, -1]}
# with default parameters these rules cannot judge these runs
GIVEN = {"TDC120": ":max_threshold=5", "TDC124": ":dtype=float16"}
STEPS = {"TDC106": 220}  # in TRAIN mode
RANKS = {"TDC125": 3, "TDC131": 2}
OF_TENSORS = [code for code, rule in RULES.items() if judges_tensors(rule)]
BY_HAND = {"TDC110", "TDC111", "TDC115", "TDC116"}  # these rules need tensors that the script saves


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread; several threads are slower for layers this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Tokens(nn.Module):
    """An embedding whose name does not contain "embedding"."""

    def __init__(self) -> None:
        super().__init__()
        self.lookup = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores of four classes for ids of shape (batch, length)."""
        scores: torch.Tensor = self.head(self.lookup(ids).mean(1))
        return scores


def pictures() -> nn.Sequential:
    """Return layers of many kinds whose names are numbers."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 8),
        nn.Sigmoid(),
        nn.Linear(8, 4),
    )


def save_by_hand(hook: Hook, labels: torch.Tensor, scores: torch.Tensor) -> None:
    hook.save_tensor("labels", labels, collections_to_write=["labels"])
    hook.save_tensor("predictions", scores, collections_to_write=["predictions"])
    for feature in range(6):
        hook.save_scalar(f"feature_importance/weight/f{feature}", 1.0)
    for name, column in TREE.items():
        hook.save_tensor(f"trees/{name}", np.array(column), collections_to_write=["trees"])


def trained(hook: Hook, model: nn.Module, steps: int, *, by_hand: bool = False) -> None:
    """Train, and validate after every ten steps."""
    random = torch.Generator().manual_seed(0)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hook.register_module(model)
    hook.register_loss(criterion)
    for step in range(steps + steps // 10):
        training = step % 11 < 10
        model.train(training)
        if isinstance(model, Tokens):
            inputs = torch.randint(0, 50, (64, 12), generator=random)
        else:
            inputs = torch.randn(64, 3, 8, 8, generator=random)
        labels = torch.randint(0, 4, (64,), generator=random)
        scores = model(inputs)
        loss = criterion(scores, labels)
        if by_hand:
            save_by_hand(hook, labels, scores.detach())
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    hook.close()


def hook_for(place: Path, rule: str, workers: str = "one") -> Hook:
    ring = td.RingConfig(ring_bytes=1 << 24)
    return Hook(place, rules=[rule], include_workers=workers, ring=ring, flusher="thread")


@pytest.mark.parametrize("code", OF_TENSORS)
def test_a_run_that_captures_what_a_rule_needs_is_judged_by_it(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = code + GIVEN.get(code, "")
    if code == "TDC114":
        trained(hook_for(tmp_path / "other", code), pictures(), 10)
        spec += f":other_trials={tmp_path / 'other'}"
    ranks = RANKS.get(code, 1)
    for rank in range(ranks):
        if ranks > 1:
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(ranks))
        hook = hook_for(tmp_path / "run", spec, "all" if ranks > 1 else "one")
        model = Tokens() if code == "TDC113" else pictures()
        trained(hook, model, STEPS.get(code, 110), by_hand=code in BY_HAND)
    (verdict,) = run(tmp_path / "run").verdicts
    assert verdict.code == code
    assert verdict.status in (Status.NO_ISSUE, Status.ISSUE), verdict.text
    assert verdict.judged or verdict.finding_count


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("dead_relu", ["1_output_0"]),
        ("saturated_activation", ["3_input_0", "6_input_0"]),
        ("dead_channels", ["0_output_0", "2_output_0", "5_output_0", "7_output_0"]),
        ("check_input_images", ["Sequential_input_0"]),
        ("poor_weight_initialization", ["1_input_0"]),
    ],
)
def test_layers_are_found_by_their_class_and_no_others_are_captured(
    rule: str, names: list[str], tmp_path: Path
) -> None:
    hook = hook_for(tmp_path, rule)
    model, criterion = pictures(), nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(criterion)
    criterion(model(torch.randn(4, 3, 8, 8)), torch.zeros(4, dtype=torch.long)).backward()
    hook.close()
    saved = td.create_trial(tmp_path).tensor_names(mode=modes.TRAIN)
    assert [name for name in saved if "put_" in name and "Loss" not in name] == names


def test_a_run_keeps_by_which_classes_it_captures(tmp_path: Path) -> None:
    hook = hook_for(tmp_path, "dead_relu")
    trained(hook, pictures(), 2)
    document = td.create_trial(tmp_path).collection("relu_output").document
    assert document["module_regex"] == ["^ReLU6?_output"]
    assert document["tensor_names"] == ["1_output_0"]
