"""The table of questions about a verified call, in the order in which they are asked, and the loop over it.

To add one, write its function in a module of its own and its row here; a code that explains what it would
find goes into its `unless`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradverify.model import Outcome, Severity
from gradverify.verifier.guard.memory import hand_back
from gradverify.verifier.questions.again import again, growing_memory, overlapping, watched
from gradverify.verifier.questions.changes import changes
from gradverify.verifier.questions.findings import CheckResult
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.verified import Verified, known
from gradverify.verifier.questions.ways import (
    as_leaves,
    late_ranks,
    other_devices,
    other_group,
    same_tensor_twice,
    saved_elsewhere,
    views_of_one_base,
)

SWEPT_CODES = frozenset(
    {f"GV4{number:02}" for number in (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 13, 14)} | {"GV701", "GV724"}
)
"""Codes that only a question can give."""

UNREPEATABLE = frozenset({"GV109", "GV408", "GV410"})
"""Where these are found no gradient can be held against the verified one."""

WRITTEN = UNREPEATABLE | {"GV401", "GV402", "GV403"}
"""What is written to is not the same in the next call either."""

LAID_OUT = WRITTEN | {"GV404", "GV405", "GV406", "GV407"}
"""What is wrong by itself is wrong together with another change."""


@dataclass(frozen=True)
class Question:
    """A row."""

    ask: Callable[[Verified], CheckResult]
    unless: frozenset[str] = frozenset()
    """Codes, but of notes, that explain what it would find."""
    everywhere: bool = False
    """At every case; else at the first of each combination of options."""
    once: bool = False
    """At the first case alone."""
    on_ranks: bool = True
    """It says something of a target on several ranks, whose memory and ctx are in other processes."""
    brief: bool = False
    """It finds what is common, in few calls: it is asked where a call is slow, too."""
    of_writes: bool = False
    """At each case where torch counts a write into an input, too: a view of one batch may be none of two."""


QUESTIONS = (
    Question(again, everywhere=True, brief=True),
    Question(watched, brief=True, of_writes=True),
    Question(late_ranks, UNREPEATABLE),
    Question(other_group, UNREPEATABLE),
    Question(overlapping, WRITTEN, brief=True),
    Question(changes, UNREPEATABLE, everywhere=True, brief=True),
    Question(saved_elsewhere, WRITTEN, once=True, on_ranks=False),
    Question(same_tensor_twice, WRITTEN, on_ranks=False),
    Question(views_of_one_base, LAID_OUT, on_ranks=False),
    Question(as_leaves, WRITTEN, once=True, on_ranks=False),
    Question(other_devices, WRITTEN, everywhere=True, brief=True),
    Question(growing_memory, once=True, on_ranks=False),
)


def asked(sample: Sample, questions: Sequence[Question] = QUESTIONS) -> CheckResult:
    """Ask everything of a verified sample.

    Nothing to differentiate, or a gradient that is not finite, leaves nothing to hold a call against: the
    outcome is then `not-run`.
    """
    base, subject = known(sample), sample.subject
    if base is None:
        return CheckResult(outcome=Outcome.NOT_RUN)
    result = CheckResult()
    for question in questions:
        here = question.everywhere or (question.of_writes and sample.written)
        here = here or (subject.is_base if question.once else subject.is_first_of_options)
        fits = (question.on_ranks or subject.across is None) and (question.brief or not subject.brief)
        found = {f.code for f in result.findings if f.severity is not Severity.NOTE}
        if here and fits and not found & question.unless:
            hand_back(sample.inputs.size)
            told = frozenset(f.code for f in result.findings)
            result = result.beside(question.ask(replace(base, found=told)))
    return result


def on_other_devices(sample: Sample) -> CheckResult:
    """What other devices make of a verified sample, at a point where nothing else is asked."""
    return asked(sample, [Question(other_devices, everywhere=True)])
