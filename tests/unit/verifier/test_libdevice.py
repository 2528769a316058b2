"""What functions of CUDA's libdevice give in Triton's interpreter."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from gradverify.verifier.interpreter.libdevice import FUNCTIONS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

CLOSED_FORMS = {
    "rsqrt": (0.25, 2.0),
    "rint": (2.5, 2.0),
    "round": (2.5, 3.0),
    "exp10": (2.0, 100.0),
    "cbrt": (-8.0, -2.0),
    "rcbrt": (8.0, 0.5),
    "normcdf": (0.0, 0.5),
    "saturate": (1.5, 1.0),
    "drcp_rn": (4.0, 0.25),
    "erfinv": (math.erf(0.5), 0.5),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_a_function_of_one_number(name):
    given, expected = CLOSED_FORMS[name]
    got = FUNCTIONS[name](torch.tensor([given], dtype=torch.float64))
    torch.testing.assert_close(got, torch.tensor([expected], dtype=torch.float64))


def test_every_name_is_one_of_cudas():
    source = importlib.util.find_spec("triton.language.extra.cuda.libdevice").origin
    symbols = {part.split('"')[0] for part in Path(source).read_text().split('"__nv_')[1:]}
    known = symbols | {symbol.removesuffix("f") for symbol in symbols}
    assert not set(FUNCTIONS) - known
