"""Whether a complex gradient of a real input hangs on that: it is looked for again where inputs are complex.

A Fourier transform takes real inputs as well, and its backward gives complex gradients: right for complex
inputs, and for real ones it lacks a `.real`. Which are meant the source does not say.
"""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Finding, TensorInput
from gradverify.verifier.checks.reading import Irregularity
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import mismatched

COMPLEX = "complex128"


def at_complex_inputs(sample: Sample, finding: Finding) -> tuple[str, ...]:
    """Real inputs with complex gradients where backward is right once they are complex; empty for none."""
    given = {i.name: i for i in sample.case.inputs if isinstance(i, TensorInput)}
    names = _of_complex_gradients(sample) & given.keys()
    if finding.input not in names or sample.case.hook:
        return ()
    inputs = tuple(
        replace(i, dtype=COMPLEX) if isinstance(i, TensorInput) and i.name in names else i
        for i in sample.case.inputs
    )
    other = prepare(sample.subject, replace(sample.case, inputs=inputs), sample.point, sample.draw)
    right = isinstance(other, Sample) and mismatched(other) is False
    return tuple(sorted(names)) if right else ()


def _of_complex_gradients(sample: Sample) -> set[str]:
    """Real inputs for which backward returned a complex gradient."""
    reader = sample.subject.reader
    return {
        sample.arguments[remark.position].name
        for (kind, _), remark in (reader.remarks.items() if reader is not None else ())
        if kind is Irregularity.DTYPE and "complex" in remark.got and "complex" not in remark.expected
    }
