"""Sequence to sequence, two optimizers: the decoder is registered before the encoder, which runs first."""

import sys

import torch
from torch import nn

WORDS, SIZE = 8, 5


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(WORDS, SIZE), nn.GRU(SIZE, SIZE)

    def forward(self, word, hidden):
        return self.gru(self.embedding(word).view(1, 1, -1), hidden)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru, self.out = (
            nn.Embedding(WORDS, SIZE),
            nn.GRU(SIZE, SIZE),
            nn.Linear(SIZE, WORDS),
        )

    def forward(self, word, hidden):
        output, hidden = self.gru(torch.relu(self.embedding(word).view(1, 1, -1)), hidden)
        return torch.log_softmax(self.out(output[0]), dim=1), hidden


def train(steps, hook=None):
    torch.manual_seed(0)
    encoder, decoder, criterion = Encoder(), Decoder(), nn.NLLLoss()
    if hook is not None:
        hook.register_module(decoder)
        hook.register_module(encoder)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (encoder, decoder)]
    losses = []
    for _ in range(steps):
        source, target = torch.randint(1, WORDS, (3,)), torch.randint(1, WORDS, (2,))
        for optimizer in optimizers:
            optimizer.zero_grad()
        hidden, loss = torch.zeros(1, 1, SIZE), torch.zeros(())
        for word in source:
            _, hidden = encoder(word, hidden)
        word = torch.tensor(0)
        for expected in target:
            output, hidden = decoder(word, hidden)
            loss = loss + criterion(output, expected[None])
            word = output.argmax().detach()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    for loss in train(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        print(loss.hex())
