"""A word language model: an LSTM, zero_grad before the forward, and hand-written SGD with p.data.add_()."""

import sys

import torch
from torch import nn

WORDS = 12


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(WORDS, 5)
        self.rnn = nn.LSTM(5, 6)
        self.decoder = nn.Linear(6, WORDS)

    def forward(self, words, state):
        output, state = self.rnn(self.encoder(words), state)
        return self.decoder(output).view(-1, WORDS), state


def evaluate(model, criterion, text):
    model.eval()
    state = torch.zeros(1, 2, 6), torch.zeros(1, 2, 6)
    with torch.no_grad():
        output, _ = model(text[:-1], state)
        return criterion(output, text[1:].reshape(-1)).item()


def train(steps, hook=None):
    torch.manual_seed(0)
    text = torch.randint(0, WORDS, (3 * steps + 1, 2))
    model, criterion, rate = Language(), nn.CrossEntropyLoss(), 0.5
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(criterion)
    state = torch.zeros(1, 2, 6), torch.zeros(1, 2, 6)
    losses = []
    model.train()
    for step in range(steps):
        batch, target = text[3 * step : 3 * step + 3], text[3 * step + 1 : 3 * step + 4]
        model.zero_grad()
        state = tuple(one.detach() for one in state)
        output, state = model(batch, state)
        loss = criterion(output, target.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-rate)
        losses.append(loss.item())
    losses.append(evaluate(model, criterion, text))
    return losses


if __name__ == "__main__":
    for loss in train(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        print(loss.hex())
