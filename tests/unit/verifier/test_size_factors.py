"""Sizes that are a factor or a divisor in a backward, by its source."""

import math

import pytest

from gradverify.verifier.doubt.size_factors import scales_by_sizes


def divided(ctx, g):
    (x,) = ctx.saved_tensors
    _, d = x.shape
    return 2 * x * g / d


def averaged(ctx, g):
    return g.expand(3).mean()


def rooted(ctx, g):
    return g * math.sqrt(g.size(-1) - 1)


def kept(ctx, g):
    g /= ctx.n
    return g


def cut(ctx, g):
    (x,) = ctx.saved_tensors
    n = x.shape[0]
    return g[:n] * x


def solved(ctx, g):
    (inverse,) = ctx.saved_tensors
    return -inverse.mT @ g @ inverse.mT


@pytest.mark.parametrize("backward", [divided, averaged, rooted, kept])
def test_a_size_is_a_factor(backward):
    assert scales_by_sizes(backward)


@pytest.mark.parametrize("backward", [cut, solved])
def test_a_size_is_none(backward):
    assert not scales_by_sizes(backward)
