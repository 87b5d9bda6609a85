"""A variational autoencoder that trains through `model.compute_loss(x)` and evaluates through forward()."""

import sys

import torch
from torch import nn
from torch.nn import functional


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, 5)
        self.mean, self.spread = nn.Linear(5, 2), nn.Linear(5, 2)
        self.decode = nn.Sequential(nn.Linear(2, 5), nn.ReLU(inplace=True), nn.Linear(5, 6))

    def forward(self, x):
        return self.decode(self.mean(torch.relu(self.encode(x))))

    def compute_loss(self, x):
        inner = torch.relu(self.encode(x))
        mean, spread = self.mean(inner), self.spread(inner)
        sample = mean + torch.randn_like(mean) * (spread / 2).exp()
        distance = functional.mse_loss(self.decode(sample), x)
        return distance - 0.05 * (1 + spread - mean.square() - spread.exp()).mean()


def train(steps, hook=None):
    torch.manual_seed(0)
    model = Autoencoder()
    if hook is not None:
        hook.register_module(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        model.train()
        x = torch.randn(4, 6)
        loss = model.compute_loss(x)
        if hook is not None:
            hook.record_tensor_value("elbo_loss", loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            distance = functional.mse_loss(model(x), x)
        losses += [loss.item(), distance.item()]
    return losses


if __name__ == "__main__":
    for loss in train(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        print(loss.hex())
