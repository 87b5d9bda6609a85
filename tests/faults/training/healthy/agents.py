"""Healthy trainings of agents: a walk along a line of places with the goal at one end, and bandits."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.faults.training.architectures import Mlp
from tests.faults.training.healthy.parts import Make, Probe, looped

__all__ = ["AGENTS"]

_PLACES, _WALK = 7, 12


class Walks:
    """A batch of walks. A walk starts in the middle; each step at the end of the goal gives a reward."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.goal = torch.randint(0, 2, (count,), generator=generator) * (_PLACES - 1)
        self.at = torch.full((count,), _PLACES // 2)

    def seen(self) -> Tensor:
        """Return place and goal, the observation of an agent."""
        return torch.stack([self.at / (_PLACES - 1) - 0.5, self.goal / (_PLACES - 1) - 0.5], 1)

    def step(self, right: Tensor) -> Tensor:
        """Move; return the rewards."""
        self.at = (self.at + 2 * right - 1).clamp(0, _PLACES - 1)
        return (self.at == self.goal).float()


def _missed(rewards: Tensor) -> float:
    """Return the share of the steps without a reward, with a floor: the best walk misses two."""
    return 1.01 - float(rewards.mean())


def policy_gradient(generator: torch.Generator, probe: Probe) -> list[float]:
    """REINFORCE with the mean return as its baseline."""
    policy = Mlp([2, 32, 2], nn.Tanh)
    probe.watch(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    measures = []
    for _ in range(120):
        walks, chosen, rewards = Walks(24, generator), [], []
        for _ in range(_WALK):
            scores = policy(walks.seen()).log_softmax(1)
            action = torch.multinomial(scores.detach().exp(), 1, generator=generator)
            chosen.append(scores.gather(1, action)[:, 0])
            rewards.append(walks.step(action[:, 0]))
        gained = torch.stack(rewards)
        returns = gained.flip(0).cumsum(0).flip(0)
        loss = -(torch.stack(chosen) * (returns - returns.mean(1, keepdim=True))).mean()
        probe.loss("policy_loss", loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        measures.append(_missed(gained))
    return measures


class ActorAndCritic(nn.Module):
    """Returns scores of the actions, and the value of the place."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(2, 48), nn.Linear(48, 2), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(self.body(x))
        return self.actor(x), self.critic(x)[:, 0]


def _play(model: ActorAndCritic, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Play a batch of walks without gradients; return (observations, actions, log-probabilities, rewards)."""
    walks = Walks(24, generator)
    seen, actions, scores, rewards = [], [], [], []
    with torch.no_grad():
        for _ in range(_WALK):
            seen.append(walks.seen())
            logits = model(seen[-1])[0].log_softmax(1)
            actions.append(torch.multinomial(logits.exp(), 1, generator=generator))
            scores.append(logits.gather(1, actions[-1])[:, 0])
            rewards.append(walks.step(actions[-1][:, 0]))
    return torch.cat(seen), torch.cat(actions), torch.cat(scores), torch.stack(rewards)


def _returns(rewards: Tensor, discount: float = 0.9) -> Tensor:
    found, after = [], torch.zeros(rewards.shape[1])
    for reward in rewards.flip(0):
        after = reward + discount * after
        found.append(after)
    return torch.cat(found[::-1])


def actor_critic(generator: torch.Generator, probe: Probe) -> list[float]:
    """One model with two heads, an entropy bonus, and clipped gradients."""
    model = ActorAndCritic()
    probe.watch(model)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)
    measures = []
    for _ in range(170):
        seen, actions, _, rewards = _play(model, generator)
        logits, values = model(seen)
        returns, scores = _returns(rewards), logits.log_softmax(1)
        entropy = -(scores.exp() * scores).sum(1).mean()
        of_actor = -(scores.gather(1, actions)[:, 0] * (returns - values.detach())).mean()
        loss = of_actor + 0.5 * functional.mse_loss(values, returns) - 0.05 * entropy
        probe.loss("loss", loss)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        measures.append(_missed(rewards))
    return measures


def proximal(generator: torch.Generator, probe: Probe) -> list[float]:
    """Several updates per batch of walks, with a clipped probability ratio (PPO)."""
    model = ActorAndCritic()
    probe.watch(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-5)
    measures = []
    for _ in range(60):
        seen, actions, before, rewards = _play(model, generator)
        returns = _returns(rewards)
        for _ in range(4):
            logits, values = model(seen)
            gain = returns - values.detach()
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            ratio = (logits.log_softmax(1).gather(1, actions)[:, 0] - before).exp()
            clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            loss = -clipped.mean() + 0.5 * functional.mse_loss(values, returns)
            probe.loss("loss", loss)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            measures.append(_missed(rewards))
    return measures


def values_of_actions(generator: torch.Generator, probe: Probe) -> list[float]:
    """Deep Q-learning: a replay memory, and a copy of the network that computes the targets."""
    model, loss = Mlp([2, 48, 2]), nn.SmoothL1Loss()
    target = copy.deepcopy(model).requires_grad_(False)
    probe.watch(model, losses=(loss,))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    memory: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    walks, measures = Walks(16, generator), []
    for step in range(320):
        if step % _WALK == 0:
            walks = Walks(16, generator)
        seen = walks.seen()
        with torch.no_grad():
            best = target(seen).argmax(1)
        random = torch.rand(16, generator=generator) < max(0.1, 1 - step / 150)
        action = torch.where(random, torch.randint(0, 2, (16,), generator=generator), best)
        memory.append((seen, action, walks.step(action), walks.seen()))
        measures.append(1.01 - float(memory[-1][2].mean()))
        at = torch.randint(0, len(memory), (4,), generator=generator).tolist()
        seen, action, reward, after = (torch.cat([memory[one][part] for one in at]) for part in range(4))
        wanted = reward + 0.9 * target(after).amax(1)
        found = loss(model(seen).gather(1, action[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        if step % 20 == 19:
            target.load_state_dict(model.state_dict())
    walked = [measures[at : at + _WALK] for at in range(0, len(measures) - _WALK + 1, _WALK)]
    return [sum(one) / _WALK for one in walked]


AGENTS: Mapping[str, Make] = {
    "policy gradient": looped(policy_gradient, gain=0.4),
    "actor and critic": looped(actor_critic, gain=0.4),
    "proximal": looped(proximal, gain=0.4),
    "values of actions": looped(values_of_actions, gain=0.4),
}
