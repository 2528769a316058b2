"""`verify` with a `world_size`: ranks of its own for what can be imported."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

import gradverify
from gradverify.errors import UsageError

MODULE = """
import torch
import torch.distributed as dist


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(g, group=ctx.group)
        return g, None


class Forgets(Copy):
    @staticmethod
    def backward(ctx, g):
        return g, None


def doubled(x, group):
    return torch.stack([x, x])
"""

GROUP = {"process_group": "world"}


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "copied_to_ranks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("copied_to_ranks")
    del sys.modules["copied_to_ranks"]


@pytest.fixture
def x():
    return torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_right_one_passes_and_a_wrong_one_is_reported_with_its_cause(module, x):
    words = {"world_size": 2, "placements": "replicate", "output_placements": "local"}
    report = gradverify.verify(module.Copy.apply, [x, GROUP], module.doubled, **words)
    assert report.status == "passed"
    assert dict(report.checks)["reference"] == "passed"
    with pytest.raises(gradverify.GradientError, match="missing-reduction") as raised:
        gradverify.verify(module.Forgets, {"x": x, "group": GROUP}, **words)
    assert {f.code for f in raised.value.findings} == {"GV101", "GV722"}


def test_what_no_rank_can_import_names_the_other_way(x):
    with pytest.raises(UsageError, match="gradcheck_distributed under torchrun"):
        gradverify.verify(lambda x: 2 * x, x, world_size=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"world_size": 3}, "`x` is local, so that its first dimension is the rank"),
        ({"world_size": 0, "placements": "replicate"}, "give a world_size"),
        ({"world_size": -1}, "world_size is -1"),
        ({"world_size": 2, "placements": "shared"}, "did you mean"),
        ({"world_size": 2, "placements": ["local"]}, "1 placements for 2 inputs"),
    ],
)
def test_words_that_are_none_are_refused(module, x, words, said):
    with pytest.raises(UsageError, match=said):
        gradverify.verify(module.Copy, {"x": x, "group": GROUP}, **words)
