"""Self-supervision: the module contains a moving average of its own encoder, updated in its forward."""

import copy
import sys

import torch
from torch import nn
from torch.nn import functional


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 4)
        )
        self.predict = nn.Linear(4, 4)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    @torch.no_grad()
    def follow(self, decay=0.9):
        for ours, theirs in zip(self.target.parameters(), self.online.parameters(), strict=True):
            ours.mul_(decay).add_(theirs, alpha=1 - decay)

    def forward(self, one, other):
        self.follow()
        with torch.no_grad():
            wanted = self.target(other)
        return 2 - 2 * functional.cosine_similarity(self.predict(self.online(one)), wanted).mean()


def train(steps, hook=None):
    torch.manual_seed(0)
    model = Learner()
    if hook is not None:
        hook.register_module(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    losses = []
    for step in range(2 * steps):  # two micro-batches per update
        x = torch.randn(5, 6)
        loss = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)) / 2
        loss.backward()
        losses.append(loss.item())
        if step % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    return losses


if __name__ == "__main__":
    for loss in train(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        print(loss.hex())
