"""Callables, worker processes, checkpointing, torch.compile, a Function of a function."""

import multiprocessing
import os

import torch
from functions import Apply, Heads, Linear, square
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint


def work(n):
    x, weight = torch.randn(n, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    checkpoint(Linear.apply, x, weight, use_reentrant=False).sum().backward()


def local():
    class Local(Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad_output):
            return 2 * grad_output

    return Local


def main():
    for how, n in (("fork", 11), ("spawn", 13)):
        process = multiprocessing.get_context(how).Process(target=work, args=(n,))
        process.start()
        process.join()
        assert process.exitcode == 0
    Apply.apply(torch.randn(5, requires_grad=True), square).sum().backward()
    Apply.apply(torch.randn(5, 7, requires_grad=True), lambda x: x * x).sum().backward()
    Heads.apply(torch.randn(9, 64, requires_grad=True), torch.randn(16), 4).sum().backward()
    local().apply(torch.randn(3, requires_grad=True)).sum().backward()
    print("variable", os.environ.get("OWN"))


if __name__ == "__main__":
    main()
