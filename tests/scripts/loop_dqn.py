"""Q learning: actions without gradients, a target network inside of the step, and soft updates by hand."""

import random
import sys

import torch
from torch import nn
from torch.nn import functional


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, state):
        return self.layer2(functional.relu(self.layer1(state)))


def train(steps, hook=None):
    torch.manual_seed(0)
    source = random.Random(0)
    policy, target = QNet(), QNet()
    target.load_state_dict(policy.state_dict())
    criterion = nn.SmoothL1Loss()
    if hook is not None:
        hook.register_module(policy)
        hook.register_module(target)
        hook.register_loss(criterion)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.01, amsgrad=True)
    memory, losses, state = [], [], torch.randn(3)
    while len(losses) < steps:
        with torch.no_grad():
            action = policy(state[None]).argmax().item() if source.random() > 0.3 else source.randrange(2)
        following = state.roll(1 if action else -1) * 0.9
        memory.append((state, action, following, float(state[action])))
        state = following
        if len(memory) < 4:
            continue
        states, actions, followings, rewards = zip(*source.sample(memory, 4), strict=True)
        values = policy(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])
        with torch.no_grad():
            best = target(torch.stack(followings)).max(1).values
        loss = criterion(values, (best * 0.9 + torch.tensor(rewards))[:, None])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        losses.append(loss.item())
        soft, hard = target.state_dict(), policy.state_dict()
        for key in hard:
            soft[key] = hard[key] * 0.05 + soft[key] * 0.95
        target.load_state_dict(soft)
    return losses


if __name__ == "__main__":
    for loss in train(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        print(loss.hex())
