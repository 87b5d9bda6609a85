"""Show what a network looked at when it made wrong predictions, from captured gradients (FullGrad).

    python examples/studies/saliency.py runs/saliency

All training images of the digit 3 were made by a scanner that leaves a mark in a corner. In the test set each
digit may have the mark. A network that learned the mark predicts 3 for marked images. The saliency maps show
this. The page docs/studies/saliency.md explains the study.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tdcore as td
from tdcore.analysis import saliency
from tdcore.hooks.pytorch import Hook
from tdcore.plot.image_maps import image_maps
from tdcore.rules import run

DIGIT = 3  # the digit whose training images have the mark
CORNER = (slice(0, 3), slice(0, 3))  # rows and columns of the image that contain the mark
LABELS, SCORES = "CrossEntropyLoss_input_1", "CrossEntropyLoss_input_0"
RULE = f"confusion:labels={LABELS},predictions={SCORES},max_off_diag=0.3,start_step=20"  # without step 0
TENSORS = ["weights", "biases", "inputs", "outputs", "output_gradients"]
EVALUATIONS = {td.ModeKeys.EVAL: td.SaveConfigMode(save_interval=1)}
Part = tuple[Tensor, Tensor]


class Net(nn.Module):
    """A convolutional network without layers whose bias is not a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(16 * 9, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the digits."""
        x = self.pool(self.conv1(x).relu())
        scores: Tensor = self.fc(self.pool(self.conv2(x).relu()).flatten(1))
        return scores


def make_data(*, repaired: bool) -> tuple[Part, Part]:
    """Return the training set and the test set. In the repaired training set any digit may have the mark."""
    digits = load_digits()
    random = torch.Generator().manual_seed(0)
    order = torch.randperm(len(digits.target), generator=random)
    images = nn.functional.pad(torch.tensor(digits.images / 16, dtype=torch.float32), (2, 2, 2, 2))[order]
    labels = torch.tensor(digits.target)[order]
    marked = torch.rand(len(labels), generator=random) < 0.3
    if not repaired:
        marked[:1000] = labels[:1000] == DIGIT
    images[marked, :2, :2] = 1.0
    return (images[:1000, None], labels[:1000]), (images[1000:, None], labels[1000:])


def train(place: Path, *, repaired: bool) -> Net:
    """Train with the hook, evaluate after each epoch, and print the findings and the accuracy."""
    torch.manual_seed(0)
    (images, labels), test = make_data(repaired=repaired)
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    with Hook(place, include_regex="Loss_input", save_config=EVALUATIONS) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(20):
            for batch in torch.randperm(len(labels)).split(50):
                optimizer.zero_grad()
                criterion(model.train()(images[batch]), labels[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                scores = model.eval()(test[0])
                criterion(scores, test[1])
    for finding in run(place, RULE).findings:
        print(f"  {finding.rule}, {finding.at}: {finding.why}")
    print(f"  accuracy {(scores.argmax(1) == test[1]).float().mean():.3f}")
    return model


def explain(place: Path, model: Net, images: Tensor) -> saliency.FullGrad:
    """Capture the gradients of the scores of the predicted classes, and compute the terms of FullGrad."""
    inputs = images.clone().requires_grad_()
    with Hook(place, save_config=EVALUATIONS, include_collections=TENSORS) as hook:
        hook.register_module(model)
        model(inputs).max(dim=1).values.sum().backward()
        hook.save_tensor("input_gradient", inputs.grad)
    return saliency.from_trial(td.create_trial(place), 0, mode=td.ModeKeys.EVAL)


def main(place: str) -> None:
    """Train both networks, and compare what they looked at in the wrong predictions of the first one."""
    torch.set_num_threads(1)  # a small network is slower with several threads
    models, maps = {}, {}
    for name in ("faulty", "repaired"):
        print(f"{name} training:")
        models[name] = train(Path(place, name), repaired=name == "repaired")
    images, labels = make_data(repaired=False)[1]
    predicted = models["faulty"](images).argmax(1)
    wrong = torch.nonzero((predicted == DIGIT) & (labels != DIGIT)).flatten()
    for name, model in models.items():
        found = explain(Path(place, f"{name}-explained"), model, images[wrong])
        maps[f"{name} network"] = found.maps()
        share = saliency.share_inside(found.maps(), CORNER).mean()
        print(f"{name}: saliency in the corner {100 * share:.0f} % of {len(wrong)} images")
    columns = [wrong[labels[wrong] == digit][0] for digit in labels[wrong].unique()]
    at = [int(torch.nonzero(wrong == each)) for each in columns]
    titles = [f"{labels[each]}, not {DIGIT}" for each in columns]
    rows = {"image": images[columns, 0].numpy(), **{name: each[at] for name, each in maps.items()}}
    image_maps(rows, titles).savefig(Path(place, "saliency.png"), dpi=70)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/saliency")
