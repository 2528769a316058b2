"""Which targets communicate, read from their module."""

import pytest

from gradverify.model import Parameter, Target, TargetKind
from gradverify.source import communicates

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


def target(name, *parameters):
    return Target(name, name, TargetKind.FUNCTION, "m.py", 1, tuple(map(Parameter, parameters)))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Direct", "it calls torch.distributed.broadcast, line 15"),
        ("ThroughAHelper", "it calls dist.all_reduce, line 9"),
        ("Renamed", "it calls gather_all, line 25"),
        ("Functional", "it calls all_reduce, line 30"),
        ("Alone", ""),
        ("Another", ""),
    ],
)
def test_the_first_collective(name, why):
    assert communicates(MODULE, target(name, "x")) == why


def test_a_group_may_be_all_that_tells():
    assert communicates(MODULE, target("Alone", "x", "group")) == "it takes a process group, `group`"
    assert communicates("import torch", target("Alone", "x", "group")) == ""


def test_a_module_that_cannot_be_read_calls_none():
    assert communicates("import torch.distributed as dist\nclass A(:", target("A", "x")) == ""
