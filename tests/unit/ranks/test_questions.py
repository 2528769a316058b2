"""What is varied across ranks: a late rank, another group, and nothing that only this process has."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from gradverify.model import Case, Point, Settings, Target, TargetKind, TensorInput
from gradverify.verifier.questions.findings import CheckResult
from gradverify.verifier.questions.subject import Sample, Subject, prepare
from gradverify.verifier.questions.table import QUESTIONS, Question, asked
from gradverify.verifier.questions.verified import Verified, verified
from gradverify.verifier.questions.ways import late_ranks, other_group
from gradverify.verifier.ranks.across import Difference

CASE = Case("world=2", 0, sizes=(("world", 2),), inputs=(TensorInput("x", (2, 3), placement="local"),))


@dataclass
class Ranks:
    """What is asked of a target on ranks."""

    late: int = -1
    is_swept: bool = True
    differences: dict[Any, Difference] = field(default_factory=dict)
    in_other_group: Any = None

    @contextmanager
    def with_late(self, rank):
        self.late = rank
        yield
        self.late = -1


def doubled(ranks, *, spoilt_by):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return (2 if ranks.late != spoilt_by else 1) * g

    return Double.apply


def base_of(function, ranks, case=CASE) -> Verified:
    target = Target("Double", "Double", TargetKind.CALLABLE, "m.py", 1)
    sample = prepare(Subject(target, function, Settings(), across=ranks), case, Point.TYPICAL, 0)
    assert isinstance(sample, Sample)
    base = verified(sample)
    assert base is not None
    return base


def test_what_is_not_waited_for_shows_where_a_rank_comes_late():
    ranks = Ranks()
    (found,) = late_ranks(base_of(doubled(ranks, spoilt_by=1), ranks)).findings
    assert found.code == "GV410"
    assert "when rank 1 comes late to every collective" in found.message
    assert late_ranks(base_of(doubled(ranks, spoilt_by=7), ranks)).findings == ()


def test_another_group_must_give_the_same():
    ranks = Ranks()
    base = base_of(doubled(ranks, spoilt_by=7), ranks)
    assert other_group(base).findings == ()  # it is passed none
    for other, codes in ((lambda x: 2 * x, []), (lambda x: 3 * x, ["GV724"])):
        other_ranks = CallableRanks(other)
        ranks.in_other_group = lambda made=other_ranks: made
        assert [f.code for f in other_group(base).findings] == codes


def test_what_ranks_disagree_on_in_another_group():
    ranks = Ranks()
    base = base_of(doubled(ranks, spoilt_by=7), ranks)
    other = CallableRanks(lambda x: 2 * x)
    other.differences["output", 0] = Difference(1, torch.ones(1), torch.zeros(1))
    ranks.in_other_group = lambda: other
    (found,) = other_group(base).findings
    assert found.code == "GV724"
    assert "disagree" in found.message


def test_what_only_one_process_has_is_not_judged_on_ranks():
    ran = []

    def noting(name):
        return lambda _base: ran.append(name) or CheckResult()

    every = (
        Question(noting("calls")),
        Question(noting("memory"), on_ranks=False),
        Question(noting("ranks")),
    )
    for ranks in (None, Ranks()):
        asked(base_of(lambda x: 2 * x, ranks).sample, every)
    assert ran == ["calls", "memory", "ranks", "calls", "ranks"]


def test_which_these_are():
    assert {q.ask.__name__ for q in QUESTIONS if not q.on_ranks} == {
        "saved_elsewhere", "same_tensor_twice", "views_of_one_base", "as_leaves", "growing_memory",
    }  # fmt: skip


class CallableRanks(Ranks):
    """The target in another group."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def __call__(self, *arguments):
        return self._function(*arguments)
