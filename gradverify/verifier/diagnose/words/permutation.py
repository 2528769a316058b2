"""Causes that are an order: transposed, permuted, sorted, in the user's own names."""

from __future__ import annotations

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Pairs
from gradverify.verifier.diagnose.words.saying import Said, of_gradient


def _dims(cause: Cause) -> str:
    if cause.dim is None:
        return ""
    return f" {cause.dim}" if cause.other_dim is None else f"s {cause.dim} and {cause.other_dim}"


def _is_square(cause: Cause, pairs: Pairs) -> bool:
    """Whether two dimensions are exchanged that are equally long at every point."""
    if cause.kind != "reshaped" or cause.dim is None or cause.other_dim is None:
        return False
    shapes = [pair.source_shape if cause.side == "input" else pair.output_shape for pair in pairs]
    return all(shape[cause.dim] == shape[cause.other_dim] for shape in shapes)


def transposed(cause: Cause, pairs: Pairs) -> Said:
    """Dimensions are exchanged, or J g stands for Jᵀ g."""
    if cause.kind == "jvp":
        return Said(
            f"{of_gradient(pairs[0])} is J g where Jᵀ g is needed", "Transpose the linear map in backward."
        )
    if _is_square(cause, pairs):
        whose = (
            of_gradient(pairs[0]) if cause.side == "input" else "the grad_output that backward uses for it"
        )
        start = "" if cause.side == "input" else f"{of_gradient(pairs[0])} is right but that "
        return Said(
            f"{start}{whose} is transposed: dimension{_dims(cause)} are exchanged",
            "A transpose is missing in backward, or one too many.",
        )
    how = (
        "with its dimensions reversed"
        if cause.kind == "reversed"
        else f"with dimension{_dims(cause)} exchanged"
    )
    if cause.side == "input":
        what = (
            f"{of_gradient(pairs[0])} has the right numbers in wrong places: it is right {how} and reshaped"
        )
    else:
        what = f"{of_gradient(pairs[0])} is right for a grad_output {how} and reshaped"
    return Said(what, "A reshape or view stands where a transpose is meant, or one of them is missing.")


def permuted(cause: Cause, pairs: Pairs) -> Said:
    """The right numbers stand in other places."""
    along = f"{cause.kind} along dimension{_dims(cause)}"
    if cause.side == "input":
        return Said(f"{of_gradient(pairs[0])} has the right numbers in the wrong places: it is {along}")
    return Said(f"{of_gradient(pairs[0])} is right for a grad_output that is {along}")
