"""FullGrad from captured tensors: the terms are complete, and equal a direct computation with autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tdcore as td
from tdcore.analysis import saliency
from tdcore.hooks.pytorch import Hook
from tdcore.trial import Trial, create_trial

COLLECTIONS = ["weights", "biases", "inputs", "outputs", "output_gradients"]


class Net(nn.Module):
    """Affine layers of all kinds, in a block too, with ReLUs and both kinds of pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.block = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.AvgPool2d(2))
        self.fc = nn.Linear(6 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.fc(self.block(self.norm(self.conv(x))).flatten(1))
        return found


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, Net, torch.Tensor]:
    """A trained network with running statistics, and a captured step whose scores were differentiated."""
    torch.manual_seed(0)
    net = Net().double()
    net(torch.randn(64, 2, 12, 12, dtype=torch.float64) + 1)  # gives batch normalisation a running mean
    x = torch.randn(7, 2, 12, 12, dtype=torch.float64, requires_grad=True)
    folder = tmp_path_factory.mktemp("run")
    with Hook(folder, save_config=td.SaveConfig(save_interval=1), include_collections=COLLECTIONS) as hook:
        hook.register_module(net.eval())
        net(x).max(dim=1).values.sum().backward()
        hook.save_tensor("input_gradient", x.grad)
    return create_trial(folder), net, x


def test_the_terms_add_up_to_the_output_of_the_network(explained: tuple[Trial, Net, torch.Tensor]) -> None:
    trial, net, x = explained
    found = saliency.from_trial(trial, 0)
    assert set(found.layers) == {"conv", "norm", "block.2", "fc"}
    scores = net(x).max(dim=1).values.detach().numpy()
    np.testing.assert_allclose(found.total, scores, rtol=1e-9)


class Similar(nn.Module):
    """Layers whose names end alike, one of them without a bias, and linear layers of four axes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.my_conv = nn.Conv2d(1, 3, 1, bias=False), nn.Conv2d(3, 3, 1)
        self.fc, self.my_fc = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.my_conv(self.conv(x)).relu().movedim(1, -1)
        found: torch.Tensor = self.my_fc(self.fc(hidden).relu()).sum(dim=(1, 2))
        return found


def test_layers_whose_names_end_alike_have_their_own_biases(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Similar().double(), torch.randn(2, 1, 4, 5, dtype=torch.float64, requires_grad=True)
    with Hook(tmp_path, save_config=td.SaveConfig(save_interval=1), include_collections=COLLECTIONS) as hook:
        hook.register_module(net.eval())
        scores = net(x).max(dim=1).values
        scores.sum().backward()
        hook.save_tensor("input_gradient", x.grad)
    found = saliency.from_trial(create_trial(tmp_path), 0)
    assert {name: terms.shape for name, terms in found.layers.items()} == {
        "my_conv": (2, 3, 4, 5), "fc": (2, 2, 4, 5), "my_fc": (2, 2, 4, 5),
    }  # fmt: skip
    np.testing.assert_allclose(found.total, scores.detach(), rtol=1e-9)


def test_terms_and_maps_equal_a_direct_computation(explained: tuple[Trial, Net, torch.Tensor]) -> None:
    trial, net, x = explained
    outputs: dict[str, torch.Tensor] = {}
    modules: dict[str, Any] = {name: net.get_submodule(name) for name in ("conv", "norm", "block.2", "fc")}
    handles = [
        each.register_forward_hook(lambda _module, _inputs, out, name=name: outputs.update({name: out}))
        for name, each in modules.items()
    ]
    score = net(x).max(dim=1).values.sum()
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(score, [x, *outputs.values()])
    norm = modules["norm"]
    shift = norm.bias - norm.running_mean * norm.weight / (norm.running_var + norm.eps).sqrt()
    biases = [net.conv.bias, shift, modules["block.2"].bias, net.fc.bias]
    found = saliency.from_trial(trial, 0)
    maps = torch.zeros(7, 12, 12, dtype=torch.float64)
    terms = [x * gradients[0]]
    for name, bias, gradient in zip(modules, biases, gradients[1:], strict=True):
        assert bias is not None
        terms.append(bias.reshape(1, -1, *[1] * (gradient.ndim - 2)) * gradient)
        np.testing.assert_allclose(found.layers[name], terms[-1].detach(), atol=1e-12)
    for term in terms[:-1]:
        for channel in range(term.shape[1]):
            part = term.detach()[:, channel : channel + 1].abs()
            low = part.amin(dim=(2, 3), keepdim=True)
            part = (part - low) / (part.amax(dim=(2, 3), keepdim=True) - low).clamp(min=1e-300)
            maps += nn.functional.interpolate(part, size=(12, 12), mode="bilinear")[:, 0]
    np.testing.assert_allclose(found.maps(), maps, atol=1e-9)


@given(*[st.integers(1, 9)] * 4)
def test_images_are_resized_as_by_pytorch(height: int, width: int, rows: int, columns: int) -> None:
    images = np.random.default_rng(0).normal(size=(2, 3, height, width))
    theirs = nn.functional.interpolate(torch.tensor(images), size=(rows, columns), mode="bilinear")
    np.testing.assert_allclose(saliency.resize(images, (rows, columns)), theirs, atol=1e-12)


def test_the_share_of_a_box_is_that_of_its_pixels() -> None:
    maps = np.array([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]])
    assert saliency.share_inside(maps, (slice(0, 1), slice(None))).tolist() == [0.3, 0.0]


def test_a_layer_that_is_not_a_line_in_each_channel_is_refused() -> None:
    x = np.random.default_rng(0).normal(size=(8, 3, 4))
    np.testing.assert_allclose(saliency.affine_bias(x, 2 * x - 5), [-5, -5, -5])
    for number in (1.0, 0.1):  # the mean of ten times 0.1 is not 0.1
        np.testing.assert_allclose(
            saliency.affine_bias(np.full((10, 1), number), np.full((10, 1), 4 / 3)), [4 / 3], rtol=1e-12
        )
    with pytest.raises(ValueError, match="not affine"):
        saliency.affine_bias(x, x**2)
    with pytest.raises(ValueError, match="must be"):
        saliency.affine_bias(x, x[:1])


def test_a_step_without_gradients_is_refused_with_the_collections_to_record(tmp_path: Path) -> None:
    with Hook(tmp_path, save_config=td.SaveConfig(save_interval=1), include_collections=["biases"]) as hook:
        net = Net().eval()
        hook.register_module(net)
        net(torch.zeros(1, 2, 12, 12))
    with pytest.raises(ValueError, match='"output_gradients"'):
        saliency.from_trial(create_trial(tmp_path), 0)
