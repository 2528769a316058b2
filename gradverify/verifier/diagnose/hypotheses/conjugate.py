"""Complex gradients that are conjugated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Explanation, Hypothesis, Pair, Pairs, first_that_holds
from gradverify.verifier.diagnose.words import of_gradient

TURNS = {"1": "", "-1": ", with the wrong sign", "1j": ", times `1j`", "-1j": ", times `-1j`"}
"""Constants of magnitude 1 that are forgotten, or one too many, and how they are said."""


def conjugate(pairs: Pairs) -> Cause | None:
    """The gradient, grad_output or what stands between them is conjugated where it must not be, or not so.

    With another sign, or times the imaginary unit, where that is forgotten, too.
    """
    return first_that_holds(_hypotheses(pairs[0]), pairs)


def _hypotheses(first: Pair) -> Iterator[Hypothesis]:
    columns, rows = first.source_block.is_complex, first.output_block.is_complex
    gradient = of_gradient(first)
    for turn, turned in TURNS.items() if columns else list(TURNS.items())[:2]:
        if columns and rows:
            what = f"{gradient} is built with a factor that lacks `.conj()`, or has one too many{turned}"
            advice = "PyTorch wants grad_output * conj(dy/dz): conjugate what was saved, not grad_output."
            yield Hypothesis(Cause("conjugate", what, advice), _explained(turn, columns=True, rows=True))
        if columns:
            minus = "minus " if turn == "-1" else ""
            advice = f"Return {minus}the conjugate of what `{first.name}` gets now."
            cause = Cause("conjugate", f"{gradient} is conjugated{turned}", advice)
            yield Hypothesis(cause, _explained(turn, columns=True, rows=False))
        if rows:
            what = f"{gradient} is computed with the conjugate of grad_output{turned}"
            yield Hypothesis(Cause("conjugate", what), _explained(turn, columns=False, rows=True))


def _explained(turn: str, *, columns: bool, rows: bool) -> Callable[[Pair], Explanation]:
    """The true block with the signs of imaginary columns, rows, or both turned, times a constant."""

    def explain(pair: Pair) -> Explanation:
        true = pair.true.clone()
        if rows:
            true[1::2] *= -1
        if columns:
            true[:, 1::2] *= -1
        return _turned(true, turn), _turned(pair.bound, turn).abs()

    return explain


def _turned(block: Tensor, turn: str) -> Tensor:
    """The gradients, a row each, times a constant of magnitude 1."""
    sign = -1 if turn.startswith("-") else 1
    if not turn.endswith("j"):
        return sign * block
    other = block.clone()
    other[:, 0::2], other[:, 1::2] = -sign * block[:, 1::2], sign * block[:, 0::2]
    return other
