"""Which formats operations compute in, and the same operations carried out in float64."""

import pytest
import torch

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.questions.subject import InFloat64
from gradverify.verifier.witnesses.rounding import SIXTEEN_BITS, Formats

CASTS = {
    "bfloat16": lambda x: (x.bfloat16() * 3).double(),
    "float16": lambda x: (x.half() * 3).float().double(),
    "float8_e4m3fn": lambda x: 3 * x.to(torch.float8_e4m3fn).bfloat16().double(),
    "int8": lambda x: 3 * (x * 40).round().to(torch.int8).double() / 40,
    "": lambda x: 3 * x.float().double(),
}

LONG = {
    "a mask": lambda x: x * (x > 0).to(torch.uint8),
    "a sign": lambda x: x * x.sign().to(torch.int8),
    "an index": lambda x: x[torch.arange(len(x), dtype=torch.uint8).long()],
}


@pytest.fixture
def x():
    return torch.tensor([0.3, -1.7, 2.9], dtype=torch.float64)


def short_formats(function, x):
    with Formats([x]) as seen:
        made = function(x)
    return {str(one).removeprefix("torch.") for one in seen.of(made) & SIXTEEN_BITS}


@pytest.mark.parametrize("name", CASTS)
def test_short_formats_are_found(x, name):
    found = short_formats(CASTS[name], x)
    assert name in found if name else not found


@pytest.mark.parametrize("name", LONG)
def test_two_levels_are_no_format(x, name):
    assert not short_formats(LONG[name], x)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", ""])
def test_casts_to_less_change_nothing(x, name):
    with InFloat64():
        assert torch.equal(CASTS[name](x), 3 * x)


def test_what_hangs_on_the_bits_of_a_format_is_refused(x):
    with InFloat64(), pytest.raises(NotImplementedError):
        x.bfloat16().view(torch.int16)
    kept = torch.zeros(3, dtype=torch.bfloat16)
    with InFloat64(), pytest.raises(NotImplementedError):
        kept.copy_(x)


def test_a_call_that_cannot_be_carried_out_is_not_made_again_in_its_own_formats(x):
    """It would be another map, whose rounding counts as its formula."""
    with InFloat64():
        found = guard.call(lambda: x.bfloat16().view(torch.int16))
    assert isinstance(found, Raised)
