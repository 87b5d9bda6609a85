"""Three kinds of autoencoders on handwritten digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.healthy.digits import digits
from tests.healthy.job import Data, Job

__all__ = ["GENERATIVE"]


def _itself(flat: bool) -> tuple[Data, Data]:
    train, rest = (Data(inputs=part.inputs, targets=part.inputs) for part in digits(flat=flat))
    return train, rest


def autoencoder() -> Job:
    data, held_out = _itself(flat=True)
    model = nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 12), nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 64)
    )
    return Job(
        model=model,
        loss=nn.MSELoss(),
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        data=data,
        held_out=held_out,
        epochs=10,
        limit=0.6,
    )


class Variational(nn.Module):
    """Returns the reconstruction, and mean and log variance of the code."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 2 * width))
        self.decoder = nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + noise * (0.5 * log_variance).exp()), mean, log_variance


class EvidenceLoss(nn.Module):
    """Reconstruction error and divergence of the code from a normal distribution, per pixel."""

    def forward(self, outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        reconstruction, mean, log_variance = outputs
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return functional.mse_loss(reconstruction, targets) + 0.1 * divergence / targets.shape[1]


def variational() -> Job:
    data, held_out = _itself(flat=True)
    model = Variational()
    return Job(
        model=model,
        loss=EvidenceLoss(),
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        data=data,
        held_out=held_out,
        epochs=10,
        limit=0.8,
    )


def denoising() -> Job:
    data, held_out = _itself(flat=False)
    noise = torch.Generator().manual_seed(0)
    noisy = [
        Data(inputs=part.inputs + 0.3 * torch.randn(part.inputs.shape, generator=noise), targets=part.targets)
        for part in (data, held_out)
    ]
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(12, 1, 3, padding=1),
    )
    return Job(
        model=model,
        loss=nn.L1Loss(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        data=noisy[0],
        held_out=noisy[1],
        epochs=6,
        limit=0.4,
    )


GENERATIVE = {
    "digits, autoencoder": autoencoder,
    "digits, variational autoencoder": variational,
    "digits, denoising convolutions, L1": denoising,
}
