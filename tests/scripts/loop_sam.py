"""Sharpness-aware minimisation: two forwards and backwards per update, the second at moved weights."""

import sys

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, rho=0.05, **settings):
        super().__init__(parameters, {"rho": rho, **settings})
        self.base = torch.optim.SGD(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        these = [one for group in self.param_groups for one in group["params"] if one.grad is not None]
        norm = torch.stack([one.grad.norm() for one in these]).norm() + 1e-12
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["old"] = parameter.data.clone()
                    parameter.add_(parameter.grad * (group["rho"] / norm))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data = self.state[parameter]["old"]
        self.base.step()
        self.zero_grad()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)


def train(steps, hook=None):
    torch.manual_seed(0)
    model, criterion = Net(), nn.CrossEntropyLoss()
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(criterion)
    optimizer = SAM(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        x, target = torch.randn(6, 5), torch.randint(0, 3, (6,))
        loss = criterion(model(x), target)
        loss.backward()
        optimizer.first_step()
        criterion(model(x), target).backward()
        optimizer.second_step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    for loss in train(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        print(loss.hex())
