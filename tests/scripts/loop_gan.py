"""A GAN: the critic on real and on generated images, then the generator, each with its own optimizer."""

import sys

import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(3, 4, 2),
            nn.BatchNorm2d(4),
            nn.ReLU(True),
            nn.ConvTranspose2d(4, 1, 3),
            nn.Tanh(),
        )

    def forward(self, noise):
        return self.main(noise)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(4, 1, 2), nn.Sigmoid()
        )

    def forward(self, image):
        return self.main(image).view(-1)


def train(steps, hook=None):
    torch.manual_seed(0)
    generator, critic, criterion = Generator(), Critic(), nn.BCELoss()
    if hook is not None:
        hook.register_module(generator)
        hook.register_module(critic)
        hook.register_loss(criterion)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.002, betas=(0.5, 0.999))
    of_generator = torch.optim.Adam(generator.parameters(), lr=0.002, betas=(0.5, 0.999))
    fixed_noise = torch.randn(4, 3, 1, 1)
    ones, zeros = torch.ones(4), torch.zeros(4)
    losses = []
    for step in range(steps):
        critic.zero_grad()
        on_real = criterion(critic(torch.rand(4, 1, 4, 4)), ones)
        on_real.backward()
        fake = generator(torch.randn(4, 3, 1, 1))
        on_fake = criterion(critic(fake.detach()), zeros)
        on_fake.backward()
        of_critic.step()
        generator.zero_grad()
        of_fake = criterion(critic(fake), ones)
        of_fake.backward()
        of_generator.step()
        losses += [(on_real + on_fake).item(), of_fake.item()]
        if step % 2 == 1:
            with torch.no_grad():
                losses.append(generator(fixed_noise).mean().item())
    return losses


if __name__ == "__main__":
    for loss in train(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        print(loss.hex())
