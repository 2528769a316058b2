"""Which targets communicate, read from their module."""

import pytest

from gradverify.source import collective_of

MODULE = """
import torch
import torch.distributed as dist
from torch.distributed import all_gather as gather_all
from torch.distributed._functional_collectives import all_reduce


def summed(x):
    dist.all_reduce(x)
    return x


class Direct:
    def backward(ctx, g):
        torch.distributed.broadcast(g, 0)


class ThroughAHelper:
    def backward(ctx, g):
        return summed(g)


class Renamed:
    def backward(ctx, g):
        return gather_all(g)


class Functional:
    def backward(ctx, g):
        return all_reduce(g, "sum", ctx.group)


class Alone:
    def backward(ctx, g):
        return g * dist.get_world_size()


class Another:
    def backward(ctx, g):
        return g.scatter(0, ctx.index, 1.0) + g.reduce()
"""


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("Direct", "torch.distributed.broadcast, line 15"),
        ("ThroughAHelper", "dist.all_reduce, line 9"),
        ("Renamed", "gather_all, line 25"),
        ("Functional", "all_reduce, line 30"),
        ("Alone", ""),
        ("Another", ""),
    ],
)
def test_the_first_collective(name, place):
    assert collective_of(MODULE, name) == place


def test_a_module_that_cannot_be_read_has_none():
    assert collective_of("import torch.distributed as dist\nclass A(:", "A") == ""
