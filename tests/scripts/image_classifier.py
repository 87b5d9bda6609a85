"""An image classifier in the style of model zoos.

Meters, scheduler, EMA, mixed precision, accumulation, validation, checkpoints. Does not use tdcore.
"""

import argparse
import copy
import os
import sys
from collections import OrderedDict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="training")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("-b", "--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--grad-accum-steps", type=int, default=2)
parser.add_argument("--clip-grad", type=float, default=1.0)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--model-ema", action="store_true")
parser.add_argument("--output", default="")
parser.add_argument("--resume", default="")
parser.add_argument("--workers", type=int, default=0)


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


class ModelEma(nn.Module):
    def __init__(self, model, decay=0.9):
        super().__init__()
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        values = model.state_dict()
        for name, ema in self.module.state_dict().items():
            value = values[name]
            ema.copy_(ema * self.decay + value * (1 - self.decay) if ema.is_floating_point() else value)

    def forward(self, x):
        return self.module(x)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x))) + x


class TinyResNet(nn.Module):
    def __init__(self, classes=4, channels=6):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.Sequential(Block(channels), Block(channels))
        self.head = nn.Linear(channels, classes)

    def forward_features(self, x):
        return self.blocks(self.stem(x))

    def forward(self, x):
        return self.head(self.forward_features(x).mean(dim=(2, 3)))


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, scaler, ema):
    model.train()
    losses = AverageMeter()
    optimizer.zero_grad()
    for index, (x, target) in enumerate(loader):
        update = (index + 1) % args.grad_accum_steps == 0
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
            loss = loss_fn(model(x), target) / args.grad_accum_steps
        losses.update(loss.item() * args.grad_accum_steps, x.size(0))
        scaler.scale(loss).backward()
        if update:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if ema is not None:
                ema.update(model)
        print(f"Train: {epoch} [{index}/{len(loader)}] Loss: {loss.item().hex()}")
    return OrderedDict([("loss", losses.avg)])


@torch.inference_mode()
def validate(model, loader, loss_fn):
    model.eval()
    losses = AverageMeter()
    for x, target in loader:
        losses.update(loss_fn(model(x), target).item(), x.size(0))
    return OrderedDict([("loss", losses.avg)])


def main():
    args = parser.parse_args()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    model = TinyResNet()
    with torch.no_grad():  # shapes are inspected before the training
        model(torch.zeros(1, 1, 6, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=args.amp)
    ema = ModelEma(model) if args.model_ema else None
    start_epoch = 0
    if args.resume:
        state = torch.load(args.resume, weights_only=True)
        model.load_state_dict(state["state_dict"])
        optimizer.load_state_dict(state["optimizer"])
        start_epoch = state["epoch"] + 1
    data = TensorDataset(torch.randn(64, 1, 6, 6), torch.randint(0, 4, (64,)))
    loader = DataLoader(data, args.batch_size, shuffle=True, num_workers=args.workers)
    held_out = DataLoader(data, 32)
    train_loss, validate_loss = nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss()
    best = None
    for epoch in range(start_epoch, args.epochs):
        train = train_one_epoch(epoch, model, loader, optimizer, train_loss, args, scaler, ema)
        held = validate(ema if ema is not None else model, held_out, validate_loss)
        scheduler.step()
        print(f"Epoch {epoch}: train {train['loss'].hex()} val {held['loss'].hex()}")
        best = held["loss"] if best is None else min(best, held["loss"])
        if args.output:
            state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, os.path.join(args.output, "last.pth.tar"))
    print(f"*** Best: {best.hex()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
