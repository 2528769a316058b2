"""A training script, as small as they come."""

import sys

import torch
from functions import Linear, Lookup, Scale

lookup = Lookup.apply


def train(epochs):
    torch.manual_seed(0)
    table = torch.randn(30, 16, requires_grad=True)
    weight = torch.randn(8, 16, requires_grad=True)
    bias = torch.zeros(8, requires_grad=True)
    for epoch in range(epochs):
        for b in (32, 32, 20):
            x = lookup(table, torch.randint(0, 30, (b,)))
            y = Linear.apply(x, weight, bias if epoch % 2 == 0 else None)
            loss = Scale.apply(y, 0.5, "sum").sum()
            loss.backward()
    print(f"loss {loss.item():.6f} {weight.grad.sum().item():.6f} {sys.argv[1:]} {len(sys.path)}")


if __name__ == "__main__":
    train(int(sys.argv[1]))
    if "--fail" in sys.argv:
        sys.exit(7)
    if "--crash" in sys.argv:
        import os

        os.abort()
