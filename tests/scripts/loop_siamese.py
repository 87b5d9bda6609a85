"""A siamese network with a contrastive loss: the model runs on both images of a pair before one backward."""

import sys

import torch
from torch import nn
from torch.nn import functional


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten())
        self.embed = nn.Linear(12, 4)

    def forward(self, image):
        return self.embed(self.features(image))


def contrastive(one, other, different, margin=1.0):
    distance = functional.pairwise_distance(one, other)
    return (
        (1 - different) * distance.square() + different * (margin - distance).clamp(min=0).square()
    ).mean()


def train(steps, hook=None):
    torch.manual_seed(0)
    model = Siamese()
    if hook is not None:
        hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        model.train()
        one, other, different = torch.randn(4, 1, 4, 4), torch.randn(4, 1, 4, 4), torch.tensor([0.0, 1, 0, 1])
        optimizer.zero_grad()
        loss = contrastive(model(one), model(other), different)
        if hook is not None:
            hook.record_tensor_value("contrastive_loss", loss)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses.append(contrastive(model(one), model(other), different).item())
    return losses


if __name__ == "__main__":
    for loss in train(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        print(loss.hex())
