"""Native dtypes at a size that nobody listed: a path of float32 alone may leave a tail, too.

A vector path takes four floats at a time, and what is left over shows at some sizes only. One native call
beside one in float64 tells what is gross; only then is the dtype judged in full.
"""

from __future__ import annotations

from torch import Tensor

from gradverify.model import Finding, Severity
from gradverify.verifier.checks.automatic_composite import NoComposite
from gradverify.verifier.checks.precision.arithmetic import plainly
from gradverify.verifier.checks.precision.beside import dtypes_of, in_dtype
from gradverify.verifier.checks.precision.native import NoCall, values_of
from gradverify.verifier.checks.precision.place import Place
from gradverify.verifier.checks.precision.truth import Verified
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised

GROSS = 2.0**-4
"""Of the largest entry: more than float32 rounds away of a value, less than a wrong branch makes of it."""


def wrong_natively(sample: Sample) -> tuple[Finding, ...]:
    """The errors of a sample whose first order is right in float64."""
    truth = Verified(sample, NoComposite("none is looked for at sizes that nobody listed"))
    findings: list[Finding] = []
    for dtype, asked in dtypes_of(sample):
        call = Place.typical(sample, truth, plainly(dtype), asked=asked).call()
        if isinstance(call, NoCall):
            continue
        exact = values_of(call.exact, call.exact_cotangents)
        if not isinstance(exact, Raised) and any(map(_is_gross, call.got, exact)):
            findings += in_dtype(sample, truth, dtype, asked=asked)[0]
    return tuple(f for f in findings if f.severity is Severity.ERROR)


def _is_gross(got: Tensor, exact: Tensor) -> bool:
    if not exact.numel() or not exact.isfinite().all():
        return False
    return bool((got - exact).abs().max() > GROSS * exact.abs().max())
