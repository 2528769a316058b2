"""`gradcheck_distributed` in a program of two ranks: the same verdict on both."""

from __future__ import annotations

import textwrap
from concurrent.futures import ThreadPoolExecutor

import forked_command
import pytest
import torch

from gradverify import gradcheck_distributed
from gradverify.errors import UsageError

PROGRAM = """
import os

import torch
import torch.distributed as dist
from torch.autograd import Function

import gradverify


class Copy(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class Forgets(Copy):
    @staticmethod
    def backward(ctx, g):
        return g, None


def asked(what, *given, **words):
    try:
        report = gradverify.gradcheck_distributed(*given, **words)
        said = f"{report.status} {sorted(f.code for f in report.findings)}"
    except gradverify.GradientError as error:
        said = f"GradientError {sorted({f.code for f in error.findings})} {error.findings[0].cause}"
    except Exception as error:
        said = f"{type(error).__name__} {error}"
    with open(f"said.{dist.get_rank()}", "a") as file:  # one stream would mix lines of two processes
        print(f"{what}: {said}", file=file)


met = "file://" + os.path.abspath("met")
dist.init_process_group("gloo", met, rank=int(os.environ["RANK"]), world_size=2)
rank, group = dist.get_rank(), dist.group.WORLD
x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3) / 4 + 0.3
scale = torch.tensor(1.5 + rank, dtype=torch.float64)
asked("right", lambda x: Copy.apply(x, group), x, placements="replicate")
asked("wrong", lambda x: Forgets.apply(x, group), x, placements="replicate")
asked("partial", lambda x: Forgets.apply(x, group), x, placements={"replicate": "partial"})
asked("local", lambda x, n: x * scale * n, [x * (1 + rank), 2 + rank])
asked("differs", lambda x: Copy.apply(x, group), x + rank, placements="replicate")
asked("short", lambda x: x * 2, x.float())
dist.destroy_process_group()
"""

REFUSED = "UsageError gradcheck_distributed: input0 is "

SAID = {
    "right": "passed []",
    "wrong": "GradientError ['GV101', 'GV722'] missing-reduction",
    "partial": "passed []",
    "local": "passed []",
    "differs": f"{REFUSED}to be the same on every rank (replicate), and is not",
    "short": f"{REFUSED}torch.float32: give float64, in which a derivative can be measured",
}


def test_every_rank_gets_the_same_verdict(tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))

    def run(rank):
        variables = forked_command.plain_environment(RANK=str(rank))
        return forked_command.python(["program.py"], tmp_path, variables)

    with ThreadPoolExecutor() as pool:
        ran = list(pool.map(run, (0, 1)))
    assert [one.code for one in ran] == [0, 0], ran[0].err[-2000:] + ran[1].err[-2000:]
    expected = [f"{what}: {said}" for what, said in SAID.items()]
    assert [(tmp_path / f"said.{rank}").read_text().splitlines() for rank in (0, 1)] == [expected, expected]


def test_without_a_process_group():
    with pytest.raises(UsageError, match="init_process_group"):
        gradcheck_distributed(lambda x: x, torch.ones(2, dtype=torch.float64))
