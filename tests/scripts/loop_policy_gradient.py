"""Policy gradient: episodes run without gradients in training mode, then the policy trains on them."""

import sys

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 6), nn.Linear(6, 2)

    def forward(self, state):
        return self.head(torch.tanh(self.body(state)))


def move(state, action):
    """Move a point on a plane.

    The action pushes it left or right; the reward is its closeness to the origin.
    """
    position, speed = state
    speed = speed + (0.2 if action else -0.2)
    position = position + speed
    return torch.stack([position, speed]), -position.abs()


@torch.no_grad()
def play(policy, length):
    state, states, actions, rewards = torch.tensor([0.5, 0.0]), [], [], []
    for _ in range(length):
        action = torch.distributions.Categorical(logits=policy(state)).sample()
        states.append(state)
        actions.append(action)
        state, reward = move(state, action.item())
        rewards.append(reward)
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    return torch.stack(states), torch.stack(actions), (returns - returns.mean()) / (returns.std() + 1e-6)


def train(steps, hook=None):
    torch.manual_seed(0)
    policy = Policy()
    if hook is not None:
        hook.register_module(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        states, actions, returns = play(policy, length=5)
        likelihood = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
        loss = -(likelihood * returns).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    for loss in train(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        print(loss.hex())
