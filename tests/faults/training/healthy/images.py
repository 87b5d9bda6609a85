"""Healthy trainings on images."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.faults.training.architectures import ResNet, job_of
from tests.faults.training.data import patches, shapes
from tests.faults.training.healthy.parts import (
    Blocks,
    Make,
    Probe,
    SumOfLosses,
    looped,
    one_cycle,
    pretrained,
    warm_up_and_cosine,
)
from tests.faults.training.held_out import UNet
from tests.faults.training.job import Job, adam, sgd

__all__ = ["IMAGES"]


def _adamw(rate: float, decay: float = 0.01) -> Any:
    return lambda held: torch.optim.AdamW(held, lr=rate, weight_decay=decay)


def _groups(width: int) -> nn.Module:
    return nn.GroupNorm(4, width)


def _classifier(model: nn.Module, generator: torch.Generator, **options: Any) -> Job:
    inputs, targets = shapes(1000, 14, generator)
    loss = options.pop("loss", nn.CrossEntropyLoss())
    return job_of(model, loss, inputs, targets, generator, steps=160, classes=True, **options)


def batch_norm_cosine(generator: torch.Generator) -> Job:
    optimizer = sgd(0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    model = Blocks([16, 32, 32], nn.BatchNorm2d)
    return _classifier(model, generator, optimizer=optimizer, rate=warm_up_and_cosine(1, 160))


def group_norm_one_cycle(generator: torch.Generator) -> Job:
    optimizer = sgd(0.1, momentum=0.9)
    return _classifier(
        Blocks([16, 32], _groups, nn.SiLU), generator, optimizer=optimizer, rate=one_cycle(160)
    )


def autocast_bfloat16(generator: torch.Generator) -> Job:
    return _classifier(Blocks([16, 32], nn.BatchNorm2d), generator, optimizer=adam(3e-3), autocast=True)


class Separable(nn.Module):
    """Alternating depthwise and pointwise convolutions."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.deep = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(2))
        self.wide = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        self.act, self.head = nn.Hardswish(), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for deep, wide, norm in zip(self.deep, self.wide, self.norms, strict=True):
            x = x + self.act(norm(wide(deep(x))))
        result: Tensor = self.head(x.amax((2, 3)))
        return result


def separable_rmsprop(generator: torch.Generator) -> Job:
    optimizer = lambda held: torch.optim.RMSprop(held, lr=2e-3, momentum=0.9, alpha=0.95)  # noqa: E731
    return _classifier(Separable(), generator, optimizer=optimizer)


def dropout_adamw(generator: torch.Generator) -> Job:
    return _classifier(Blocks([24, 48], nn.BatchNorm2d, drop=0.5), generator, optimizer=_adamw(3e-3, 0.05))


class ClassToken(nn.Module):
    """A vision transformer with a class token, which its head reads."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=2)
        self.cls_token, self.place = (
            nn.Parameter(torch.zeros(1, 1, width)),
            nn.Parameter(0.02 * torch.randn(1, 37, width)),
        )
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.place
        result: Tensor = self.head(self.norm(self.encoder(x))[:, 0])
        return result


def vit_warm_up(generator: torch.Generator) -> Job:
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    rate = warm_up_and_cosine(20, 160)
    return _classifier(ClassToken(), generator, loss=loss, optimizer=_adamw(4e-3, 0.05), rate=rate, clip=1.0)


class Dice(nn.Module):
    """One minus the overlap (Dice) of mask and output, plus the binary cross-entropy."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        share = outputs.sigmoid()
        both = (share * targets).sum((1, 2, 3))
        dice = 1 - (2 * both + 1) / (share.sum((1, 2, 3)) + targets.sum((1, 2, 3)) + 1)
        return dice.mean() + functional.binary_cross_entropy_with_logits(outputs, targets)


def u_net_dice(generator: torch.Generator) -> Job:
    inputs, targets = patches(400, 16, generator)
    return job_of(UNet(), Dice(), inputs, targets, generator, optimizer=adam(2e-3), size=16, steps=140)


class Detector(nn.Module):
    """Predicts the kind of a shape and the position of its corner, from shared features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 24, 3, stride=2, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.kind, self.box = nn.Linear(32 * 49, 4), nn.Linear(32 * 49, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return self.kind(x), self.box(x).sigmoid()


def detector(generator: torch.Generator) -> Job:
    inputs, kinds = shapes(1000, 14, generator)
    rows = functional.avg_pool2d(inputs.abs(), 4, stride=1).flatten(1).argmax(1)
    corners = torch.stack([rows // 11, rows % 11], 1) / 11
    loss = SumOfLosses(nn.CrossEntropyLoss(), nn.SmoothL1Loss(), weights=(1.0, 5.0))
    targets = torch.cat([kinds[:, None], corners], 1)
    return job_of(Detector(), loss, inputs, targets, generator, optimizer=adam(1e-3), steps=140)


class ImageCoder(nn.Module):
    """An autoencoder for images with values between 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1)
        )
        self.decoder = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 1, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.decoder(self.encoder(x)))


def image_autoencoder(generator: torch.Generator) -> Job:
    _, masks = patches(500, 16, generator)
    noisy = (masks + 0.1 * torch.rand(masks.shape, generator=generator)).clamp(0, 1)
    return job_of(
        ImageCoder(), nn.BCELoss(), noisy, masks.clone(), generator, optimizer=adam(4e-3), size=16, steps=140
    )


def mixed_up(generator: torch.Generator) -> Job:
    inputs, of = shapes(1000, 14, generator)
    targets = functional.one_hot(of, 4).float()
    other, share = torch.randperm(1000, generator=generator), torch.rand(1000, generator=generator)[:, None]
    share = 0.75 + 0.25 * share
    inputs = share[..., None, None] * inputs + (1 - share[..., None, None]) * inputs[other]
    targets = share * targets + (1 - share) * targets[other]
    model, loss = Blocks([16, 32], nn.BatchNorm2d, nn.GELU), nn.CrossEntropyLoss()
    return job_of(model, loss, inputs, targets, generator, optimizer=_adamw(4e-3), steps=160)


def _body(generator: torch.Generator) -> Blocks:
    """Return a network that was trained on other images of the same kind."""
    model = Blocks([16, 32], nn.BatchNorm2d)
    pretrained(model, *shapes(800, 14, generator), steps=80, rate=3e-3)
    model.head = nn.Linear(32, 4)
    return model


def frozen_body(generator: torch.Generator) -> Job:
    model = _body(generator)
    model.body.requires_grad_(False)
    return _classifier(
        model,
        generator,
        optimizer=adam(1e-2),
        trained=lambda held: [*held.get_submodule("head").parameters()],
    )


def fine_tuned_with_two_rates(generator: torch.Generator) -> Job:
    model = _body(generator)

    def optimizer(held: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [
                {"params": list(model.body.parameters()), "lr": 2e-4},
                {"params": list(model.head.parameters()), "lr": 5e-3},
            ]
        )

    return _classifier(model, generator, optimizer=optimizer, rate=warm_up_and_cosine(10, 160))


class Excited(nn.Module):
    """Convolutions whose channels are weighted by gates between 0 and 1."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, width, 3, stride=2, padding=1), nn.BatchNorm2d(width)
        self.squeeze, self.excite = nn.Linear(width, 6), nn.Linear(6, width)
        self.gate, self.act = nn.Sigmoid(), nn.ReLU(inplace=True)
        self.conv2, self.head = nn.Conv2d(width, width, 3, padding=1), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm1(self.conv1(x)))
        gates = self.gate(self.excite(functional.relu(self.squeeze(x.mean((2, 3))))))
        x = self.conv2(x * gates[..., None, None])
        result: Tensor = self.head(functional.relu(x).amax((2, 3)))
        return result


def squeeze_and_excitation(generator: torch.Generator) -> Job:
    return _classifier(Excited(), generator, optimizer=adam(4e-3))


class ImageMixer(nn.Module):
    """Patches, mixed alternately over places and over channels."""

    def __init__(self, width: int = 32, places: int = 49) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.over_places = nn.ModuleList(
            nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places)) for _ in range(2)
        )
        self.over_channels = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for at, (places, channels) in enumerate(zip(self.over_places, self.over_channels, strict=True)):
            x = x + places(self.norms[2 * at](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * at + 1](x))
        result: Tensor = self.head(x.mean(1))
        return result


def image_mixer(generator: torch.Generator) -> Job:
    return _classifier(ImageMixer(), generator, optimizer=_adamw(4e-3, 0.1), rate=warm_up_and_cosine(10, 160))


def averaged_weights(generator: torch.Generator) -> Job:
    job = _classifier(ResNet(), generator, optimizer=sgd(0.03, momentum=0.9))
    averaged = copy.deepcopy(job.model).requires_grad_(False)

    def average(job: Job, step: int) -> None:
        with torch.no_grad():
            for held, now in zip(averaged.parameters(), job.model.parameters(), strict=True):
                held.lerp_(now, 0.05)

    job.after_update.append(average)
    return job


def between_0_and_1(generator: torch.Generator) -> Job:
    job = _classifier(Blocks([24, 32], nn.BatchNorm2d, nn.LeakyReLU), generator, optimizer=adam(3e-3))
    batch = job.batch
    job.batch = lambda step: (((batch(step)[0] + 1) / 4).clamp(0, 1), batch(step)[1])
    job.held_out = [(((x + 1) / 4).clamp(0, 1), of) for x, of in job.held_out]
    return job


class Larger(nn.Module):
    """Predicts an image of twice the size, as a correction of the interpolated image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act = nn.Conv2d(1, 24, 3, padding=1), nn.PReLU()
        self.conv2, self.up = nn.Conv2d(24, 4, 3, padding=1), nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = functional.interpolate(x, scale_factor=2) + self.up(
            self.conv2(self.act(self.conv1(x)))
        )
        return result


def super_resolution(generator: torch.Generator) -> Job:
    _, masks = patches(400, 16, generator)
    large = functional.avg_pool2d(masks, 3, stride=1, padding=1)
    small = functional.avg_pool2d(large, 2)
    return job_of(
        Larger(), nn.L1Loss(), small, large, generator, optimizer=adam(5e-3), size=16, steps=160, gain=0.2
    )


def distilled(generator: torch.Generator, probe: Probe) -> list[float]:
    """A small network learns from the outputs of a trained network and from the labels."""
    inputs, targets = shapes(800, 14, generator)
    teacher, student = Blocks([24, 48], nn.BatchNorm2d), Blocks([12, 16], nn.BatchNorm2d)
    pretrained(teacher, inputs, targets, steps=100, rate=3e-3)
    teacher.eval().requires_grad_(False)
    soft, hard = nn.KLDivLoss(reduction="batchmean"), nn.CrossEntropyLoss()
    probe.watch(student, losses=(soft, hard))
    optimizer = torch.optim.Adam(student.parameters(), lr=4e-3)
    losses = []
    for _ in range(140):
        rows = torch.randint(0, 800, (32,), generator=generator)
        answers = student(inputs[rows])
        with torch.no_grad():
            wanted = teacher(inputs[rows])
        near = soft((answers / 2).log_softmax(1), (wanted / 2).softmax(1))
        loss = 4 * near + 0.5 * hard(answers, targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


IMAGES: Mapping[str, Make] = {
    "batch norm, cosine": batch_norm_cosine,
    "group norm, one cycle": group_norm_one_cycle,
    "autocast to bfloat16": autocast_bfloat16,
    "separable, RMSprop": separable_rmsprop,
    "dropout, AdamW": dropout_adamw,
    "vision transformer, warm-up": vit_warm_up,
    "u-net, dice": u_net_dice,
    "detector": detector,
    "image autoencoder": image_autoencoder,
    "mixed up": mixed_up,
    "frozen body": frozen_body,
    "fine-tuned with two rates": fine_tuned_with_two_rates,
    "squeeze and excitation": squeeze_and_excitation,
    "image mixer": image_mixer,
    "averaged weights": averaged_weights,
    "between 0 and 1": between_0_and_1,
    "super-resolution": super_resolution,
    "distilled": looped(distilled, gain=0.3),
}
