"""Causes that are an order: transposed, permuted, sorted, in the user's own names."""

from __future__ import annotations

from gradverify.verifier.checks.saying import Said, of_gradient
from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.evidence import Pairs


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


_ORDERS = {
    "sorted": "it is in the order of `{}` sorted along dimension {}, and not put back",
    "sorted descending": "it is in the descending order of `{}` along dimension {}, and not put back",
    "unsorted": "it is put back by the order of `{}` along dimension {}, which it is in already",
    "gathered": "where the order of `{}` along dimension {} is to be undone, it is applied again",
    "gathered descending": "where the descending order of `{}` along dimension {} is to be undone, it is "
    "applied again",
    "scattered": "where the order of `{}` along dimension {} is to be applied, it is undone",
    "opposite": "it is put back by the opposite of the order of `{}` along dimension {}",
    "exchanged": "of the orders of `{}` along dimension {}, one stands where the other should",
    "unknown": "along dimension {1} it is in another order",
}
"""How an order that the data make is said, of a tensor and a dimension."""


def permuted(cause: Cause, pairs: Pairs) -> Said:
    """The right numbers stand in other places."""
    if cause.kind in _ORDERS:
        return _in_order(cause, pairs)
    along = f"{_arranged(cause.kind)} along dimension{_dims(cause)}"
    if cause.kind == "anywhere":
        return Said(
            f"{of_gradient(pairs[0])} has the right numbers in the wrong places",
            "Look at how backward reshapes, permutes or indexes: is a permute missing before a reshape?",
        )
    if cause.side == "input":
        return Said(f"{of_gradient(pairs[0])} has the right numbers in the wrong places: it is {along}")
    return Said(f"{of_gradient(pairs[0])} is right for a grad_output that is {along}")


def _arranged(kind: str) -> str:
    """What halves and groups are told as: which way round is not in the short word."""
    count = kind.rpartition(" ")[2]
    if kind.startswith("apart"):
        return f"taken apart (the first of every {count} entries, then the second ones, and so on)"
    if kind.startswith("interleaved"):
        return f"interleaved (one entry of each of its {kind.split()[-2]} parts in turn)"
    return kind


def _in_order(cause: Cause, pairs: Pairs) -> Said:
    how = _ORDERS[cause.kind].format(cause.other, cause.dim)
    gradient = of_gradient(pairs[0])
    if cause.side == "input":
        what = f"{gradient} has the right numbers in the wrong places: {how}"
    else:
        what = f"{gradient} is right for another order of grad_output: {how}"
    if cause.kind == "unknown":
        return Said(what, "Look at the index that backward uses: is it off by one, inverted, or another's?")
    return Said(
        what,
        "What `t[order]` or `t.gather(dim, order)` took is put back by `d[order.argsort()]` or by "
        "`zeros.scatter(dim, order, d)`.",
    )
