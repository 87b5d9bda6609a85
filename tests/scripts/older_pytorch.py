"""A small image classifier with the hook of smdebug, as its users write it (tests/compat/test_shim.py).

The hook comes from the JSON configuration if there is one, else from the arguments.
"""

import argparse
import os

import smdebug.pytorch as smd
import torch
import torch.nn.functional as F  # noqa: N812 -- as scripts write it
from smdebug import modes
from smdebug.pytorch import SaveConfig, SaveConfigMode, get_hook
from torch import nn, optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(4 * 16, 3)

    def forward(self, x):
        x = F.max_pool2d(self.relu(self.conv(x)), 2)
        return self.fc(torch.flatten(x, 1))


def create_hook(args, net):
    if os.environ.get("SMDEBUG_CONFIG_FILE_PATH"):
        hook = get_hook(create_if_not_exists=True)
    else:
        hook = smd.Hook(
            out_dir=args.out_dir,
            save_config=SaveConfig(
                {
                    modes.TRAIN: SaveConfigMode(save_interval=args.save_interval),
                    modes.EVAL: SaveConfigMode(save_interval=1),
                }
            ),
            include_collections=["weights", "gradients", "losses", "activations"],
        )
        hook.get_collection("activations").include("relu")
    hook.register_module(net)
    return hook


def epoch(net, criterion, batches, hook, optimizer=None):
    hook.set_mode(modes.TRAIN if optimizer else modes.EVAL)
    net.train(optimizer is not None)
    for data, target in batches:
        if optimizer:
            optimizer.zero_grad()
        loss = criterion(net(data), target)
        if optimizer:
            loss.backward()
            optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out_dir")
    parser.add_argument("--save_interval", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    net, criterion = Net(), nn.CrossEntropyLoss()
    hook = create_hook(args, net)
    hook.register_loss(criterion)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    train = [(torch.randn(6, 1, 8, 8), torch.arange(6) % 3) for _ in range(5)]
    test = [(torch.randn(6, 1, 8, 8), torch.arange(6) % 3) for _ in range(2)]
    for number in range(2):
        epoch(net, criterion, train, hook, optimizer)
        with torch.no_grad():
            epoch(net, criterion, test, hook)
        hook.save_scalar("epoch", number, sm_metric=False)
    hook.close()


if __name__ == "__main__":
    main()
