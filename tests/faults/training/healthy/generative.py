"""Healthy trainings of generative models: adversarial, variational, diffusion, flows, autoencoders."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.faults.training.architectures import AutoEncoder, Mlp, job_of
from tests.faults.training.data import blobs
from tests.faults.training.healthy.parts import Make, Probe, WithoutClass, looped
from tests.faults.training.held_out import Evidence, Variational
from tests.faults.training.job import Job, adam

__all__ = ["GENERATIVE"]


def _ring(count: int, generator: torch.Generator) -> Tensor:
    """Sample points of the plane on a noisy ring around (1, 0)."""
    angle = 2 * math.pi * torch.rand(count, generator=generator)
    points = torch.stack([angle.cos() + 1, angle.sin()], 1)
    return points + 0.05 * torch.randn(count, 2, generator=generator)


def _distance(found: Tensor, wanted: Tensor) -> float:
    """Return the distance between the means and deviations of two sets of points, plus a small floor."""
    moments = [torch.cat([one.mean(0), one.std(0)]) for one in (found.detach(), wanted)]
    return float((moments[0] - moments[1]).norm()) + 0.05


def _smoothed(measures: list[float], width: int = 20) -> list[float]:
    """Return running means, because adversarial trainings oscillate around their optimum."""
    return [
        sum(measures[max(0, at - width + 1) : at + 1]) / min(at + 1, width) for at in range(len(measures))
    ]


def adversarial(generator: torch.Generator, probe: Probe) -> list[float]:
    """Two networks and two optimizers; neither of the losses measures the quality of the points."""
    maker, critic = Mlp([4, 32, 32, 2]), Mlp([2, 32, 32, 1], lambda: nn.LeakyReLU(0.2))
    loss = nn.BCEWithLogitsLoss()
    probe.watch(maker, critic, losses=(loss,))
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_critic = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.5, 0.999))
    ones, zeros, measures = torch.ones(64, 1), torch.zeros(64, 1), []
    for _ in range(300):
        real, noise = _ring(64, generator), torch.randn(64, 4, generator=generator)
        made = maker(noise)
        of_critic.zero_grad()
        (loss(critic(real), ones) + loss(critic(made.detach()), zeros)).backward()
        of_critic.step()
        of_maker.zero_grad()
        loss(critic(made), ones).backward()
        of_maker.step()
        measures.append(_distance(made, real))
    return _smoothed(measures)


def adversarial_with_spectral_norm(generator: torch.Generator, probe: Probe) -> list[float]:
    """The hinge loss, with a critic whose layers have a spectral norm of one."""
    maker = Mlp([4, 32, 32, 2])
    layers = [parametrizations.spectral_norm(nn.Linear(a, b)) for a, b in ((2, 48), (48, 48), (48, 1))]
    critic = nn.Sequential(layers[0], nn.LeakyReLU(0.1), layers[1], nn.LeakyReLU(0.1), layers[2])
    probe.watch(maker, critic)
    of_maker = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.0, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=5e-3, betas=(0.0, 0.9))
    measures = []
    for _ in range(280):
        real, noise = _ring(64, generator), torch.randn(64, 4, generator=generator)
        made = maker(noise)
        of_critic.zero_grad()
        loss = functional.relu(1 - critic(real)).mean() + functional.relu(1 + critic(made.detach())).mean()
        probe.loss("critic_loss", loss)
        loss.backward()
        of_critic.step()
        of_maker.zero_grad()
        answer = -critic(made).mean()
        probe.loss("maker_loss", answer)
        answer.backward()
        of_maker.step()
        measures.append(_distance(made, real))
    return _smoothed(measures)


def adversarial_with_penalty(generator: torch.Generator, probe: Probe) -> list[float]:
    """The Wasserstein loss with a gradient penalty; three steps of the critic per step of the generator."""
    maker, critic = Mlp([4, 32, 2], nn.SiLU), Mlp([2, 48, 48, 1], nn.SiLU)
    probe.watch(maker, critic)
    of_maker = torch.optim.Adam(maker.parameters(), lr=8e-3, betas=(0.0, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=8e-3, betas=(0.0, 0.9))
    measures = []
    for step in range(480):
        real, made = _ring(64, generator), maker(torch.randn(64, 4, generator=generator))
        if step % 4 == 3:
            of_maker.zero_grad()
            (-critic(made).mean()).backward()
            of_maker.step()
            measures.append(_distance(made, real))
            continue
        share = torch.rand(64, 1, generator=generator)
        between = (share * real + (1 - share) * made.detach()).requires_grad_()
        slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = critic(made.detach()).mean() - critic(real).mean() + penalty
        probe.loss("critic_loss", loss)
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
    return _smoothed(measures, 8)


def variational(generator: torch.Generator) -> Job:
    inputs, _ = blobs(1600, 4, 24, generator)
    loss = Evidence(0.005)
    return job_of(
        Variational(code=8), loss, inputs, inputs.clone(), generator, optimizer=adam(5e-3), gain=0.15
    )


class Denoiser(nn.Module):
    """Predicts the noise that was added to a point, from the point and the time."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.of_time = nn.Linear(8, width)
        self.into, self.middle, self.out = nn.Linear(2, width), nn.Linear(width, width), nn.Linear(width, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        waves = time[:, None] * 2.0 ** torch.arange(4)
        x = functional.silu(self.into(x) + self.of_time(torch.cat([waves.sin(), waves.cos()], 1)))
        result: Tensor = self.out(x + functional.silu(self.middle(x)))
        return result


def diffusion(generator: torch.Generator, probe: Probe) -> list[float]:
    """Predict noise of random strength; a moving average of the weights is kept."""
    model, loss = Denoiser(), nn.MSELoss()
    probe.watch(model, losses=(loss,))
    averaged = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(260):
        points, time = _ring(64, generator), torch.rand(64, generator=generator)
        noise = torch.randn(64, 2, generator=generator)
        keep = (1 - time)[:, None]
        optimizer.zero_grad()
        found = loss(model(keep * points + (1 - keep) * noise, time), noise)
        found.backward()
        optimizer.step()
        for held, now in zip(averaged.parameters(), model.parameters(), strict=True):
            held.lerp_(now.detach(), 0.02)
        losses.append(float(found.detach()))
    return losses


def denoising(generator: torch.Generator) -> Job:
    inputs, _ = blobs(1600, 3, 24, generator)
    noisy = inputs + 0.5 * torch.randn(inputs.shape, generator=generator)
    return job_of(AutoEncoder(code=12), nn.MSELoss(), noisy, inputs, generator, optimizer=adam(3e-3))


class Coupling(nn.Module):
    """Scale and shift half of the numbers by the other half; return the numbers and the log-determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(Mlp([1, 32, 2], nn.Tanh) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, 1)
        volume = torch.zeros(len(x), 1)
        for net in self.nets:
            scale, shift = net(first).chunk(2, 1)
            scale = scale.tanh()
            first, second, volume = second * scale.exp() + shift, first, volume + scale
        return torch.cat([first, second, volume], 1)


def flow(generator: torch.Generator) -> Job:
    points = 0.3 * _ring(2000, generator) + 1.0

    def likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
        return (0.5 * outputs[:, :2].square().sum(1) - outputs[:, 2]).mean() + 0.0 * targets.sum()

    loss = WithoutClass(likelihood)
    return job_of(
        Coupling(), loss, points, torch.zeros(2000, 1), generator, optimizer=adam(5e-3), size=64, gain=0.5
    )


class Sparse(nn.Module):
    """An autoencoder with more features than inputs; few features are active."""

    def __init__(self, width: int = 24, features: int = 64) -> None:
        super().__init__()
        self.encoder, self.act = nn.Linear(width, features), nn.ReLU()
        self.decoder = nn.Linear(features, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.act(self.encoder(x))
        return self.decoder(features), features


class SparseLoss(nn.Module):
    """The squared error plus the size of the features."""

    def forward(self, outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return functional.mse_loss(outputs[0], targets) + 0.05 * outputs[1].abs().mean()


def sparse_features(generator: torch.Generator) -> Job:
    inputs, _ = blobs(1600, 4, 24, generator)
    return job_of(Sparse(), SparseLoss(), inputs, inputs.clone(), generator, optimizer=adam(3e-3))


def quantised(generator: torch.Generator, probe: Probe) -> list[float]:
    """An autoencoder that replaces each code by its nearest vector of a table; straight-through gradients."""
    inputs, _ = blobs(1600, 4, 16, generator)
    encoder, decoder, codes = Mlp([16, 32, 8]), Mlp([8, 32, 16]), nn.Embedding(16, 8)
    nn.init.normal_(codes.weight, std=0.3)
    model = nn.ModuleDict({"encoder": encoder, "codes": codes, "decoder": decoder})
    probe.watch(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(240):
        x = inputs[torch.randint(0, 1600, (64,), generator=generator)]
        code = encoder(x)
        nearest = codes(torch.cdist(code, codes.weight).argmin(1))
        straight = code + (nearest - code).detach()
        error = functional.mse_loss(decoder(straight), x)
        loss = error + functional.mse_loss(nearest, code.detach())
        loss = loss + 0.25 * functional.mse_loss(code, nearest.detach())
        probe.loss("loss", loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(error.detach()))
    return losses


GENERATIVE: Mapping[str, Make] = {
    "adversarial": looped(adversarial, gain=0.3),
    "adversarial, spectral norm": looped(adversarial_with_spectral_norm, gain=0.3),
    "adversarial, slope penalty": looped(adversarial_with_penalty, gain=0.3),
    "variational": variational,
    "diffusion": looped(diffusion, gain=0.3),
    "denoising": denoising,
    "flow": flow,
    "sparse features": sparse_features,
    "quantised": looped(quantised, gain=0.2),
}
