"""A regression trained by an optimizer class that is not a subclass of torch.optim.Optimizer."""

import sys

import torch
from torch import nn


class Momentum:
    def __init__(self, parameters, lr=0.05, momentum=0.8):
        self.parameters = list(parameters)
        self.lr, self.momentum = lr, momentum
        self.speeds = [torch.zeros_like(parameter) for parameter in self.parameters]

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        for parameter, speed in zip(self.parameters, self.speeds, strict=True):
            if parameter.grad is not None:
                speed.mul_(self.momentum).add_(parameter.grad)
                parameter -= self.lr * speed


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(3, 7), nn.Linear(7, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x))).squeeze(1)


def train(steps, hook=None):
    torch.manual_seed(0)
    model, criterion = Net(), nn.HuberLoss()
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(criterion)
    optimizer = Momentum(model.parameters())
    losses = []
    for _ in range(steps):
        x = torch.randn(6, 3)
        loss = criterion(model(x), x.sum(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    for loss in train(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        print(loss.hex())
