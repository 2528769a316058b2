"""What could not be judged at any typical draw, in words (GV109)."""

from __future__ import annotations

from typing import Any

from gradverify.model import Finding
from gradverify.rules import Family
from gradverify.verifier.checks.result import Uncovered
from gradverify.verifier.checks.subject import Sample


def in_every(masks: list[Any]) -> Any:  # noqa: ANN401 - tensors of bool
    """Entries that are True in every mask."""
    result = masks[0]
    for mask in masks[1:]:
        result = result & mask
    return result


def family_of(name: str) -> Family:
    """The family whose outcome an uncovered pair decides, by how the pair is called."""
    if name.startswith("second order"):
        return Family.GRADGRADCHECK
    return Family.REFERENCE if name == "reference" else Family.GRADCHECK


def not_verified(sample: Sample, position: int, name: str, unknown: Uncovered) -> Finding:
    """What of one (output, input) pair could not be judged, and why."""
    count, total, reason = int(unknown.mask.sum()), unknown.mask.numel(), unknown.reason
    if name == "reference":
        return sample.finding("GV109", f"not compared with the reference: {reason}", output=position)
    of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
    if name.startswith("second order"):
        what, source = "the second derivative", name.removeprefix("second order").removeprefix(", ")
    else:
        what, source = f"the gradient{of_output}", name
    by = f" with respect to `{source}`" if source else ""
    share = f" at {count} of {total} entries" if count < total else ""
    return sample.finding(
        "GV109",
        f"{what}{by} could not be verified{share}: {reason}",
        hint=unknown.hint,
        output=position,
        input=source or None,
    )
