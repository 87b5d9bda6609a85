# mypy: ignore-errors
"""A GAN in one LightningModule with two optimizers and toggle_optimizer(), as in Lightning's examples.

Does not use tdcore.
"""

import sys

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

bce = nn.functional.binary_cross_entropy_with_logits


class GAN(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
        self.discriminator = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, z):
        return self.generator(z)

    def training_step(self, batch, index):
        generator_optimizer, discriminator_optimizer = self.optimizers()
        z, ones = torch.randn(len(batch), 2), torch.ones(len(batch), 1)
        self.toggle_optimizer(generator_optimizer)
        self.update(generator_optimizer, bce(self.discriminator(self(z)), ones))
        self.toggle_optimizer(discriminator_optimizer)
        real = bce(self.discriminator(batch), ones)
        fake = bce(self.discriminator(self(z).detach()), 1 - ones)
        self.update(discriminator_optimizer, real + fake)

    def update(self, optimizer, loss):
        self.manual_backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        parts = self.generator, self.discriminator
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in parts]


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        return self.head(self(batch)).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(kind, callbacks=(), **options):
    torch.manual_seed(0)
    module = kind()
    rows = torch.randn(24, 3)
    trainer = pl.Trainer(
        max_epochs=1,
        limit_train_batches=3,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, DataLoader(rows, batch_size=4))
    return module


if __name__ == "__main__":
    fit({"gan": GAN, "classifier": Classifier}[sys.argv[1]], strategy=sys.argv[2], devices=int(sys.argv[3]))
