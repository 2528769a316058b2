"""The judge between a claim and its witnesses: the only place where a gradient is found right or wrong.

The rules stand in `design.md`, *The one change*, and are applied in their order: proved by values, agreed
with derived, kinks and ties, loops, conflict. A proof or an agreement closes a sample; what stays open
is measured entry by entry, and between claim, derived and slope the table of conflicts decides.
"""

from __future__ import annotations

from gradverify.verifier.guard import Raised
from gradverify.verifier.witnesses.answers import Answer, Asked, Judgement, Right, Wrong
from gradverify.verifier.witnesses.conflict import decided
from gradverify.verifier.witnesses.proof import compared, pairs_of, proved


def judge(asked: Asked, *, prove: bool) -> Judgement | Raised:  # noqa: PLR0911 - the rules in their order
    """Judge the claim; `prove` at the first draw of a listed case. What backward raises is handed back."""
    pairs = pairs_of(asked.problem)
    if not asked.values.x.numel() or not asked.problem.outputs.size:
        return Judgement(dict.fromkeys(pairs, Right()), frozenset(), closed=True)
    if (not prove or asked.wrong) and asked.witness is not None:
        differing = compared(asked)
        if isinstance(differing, Raised):
            return differing
        if differing == {} and asked.trust.confirmed and not asked.hides:
            return Judgement(dict.fromkeys(pairs, Right(asked.seen)), frozenset({"derived"}), closed=True)
        if differing and differing.keys() <= asked.wrong:  # no measurement would add to what is known
            answers: dict[tuple[int, int], Answer] = {
                pair: differing.get(pair, Right(asked.seen)) for pair in pairs
            }
            return Judgement(answers, frozenset({"derived"}))
    proof = proved(asked)
    if isinstance(proof, Raised):
        return proof
    if proof.closed and not proof.differs:
        spoke = frozenset({"values", "derived"} if proof.confirms else {"values"})
        return Judgement(dict.fromkeys(pairs, Right(proof.visible)), spoke, closed=True)
    if asked.wrong.issuperset(pairs):
        return Judgement(
            dict.fromkeys(pairs, Wrong((), 0, 0, 0.0, both=False, again=True)), frozenset({"values"})
        )
    return decided(asked, proof)
