"""From a planned target to a backward that was written, executed and judged; or a sentence why not.

The same case at other sizes and numbers, so that constants show where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from torch.autograd import Function

from gradverify.events import NotSuggested, Suggested, Verify
from gradverify.model import Case, Finding, Input, LiteralInput, Outcome, Point, TargetKind, TensorInput
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.questions.results import first_order, second_order
from gradverify.verifier.questions.subject import Sample, Subject, first_line, prepare
from gradverify.verifier.suggest.constants import MOST_FACTOR, Constants, Recording, constants, same_program
from gradverify.verifier.suggest.recording import CannotSuggestError, cut, record
from gradverify.verifier.suggest.writing import ONCE, Written, candidate, write
from gradverify.verifier.targets.discover import parameters_of
from gradverify.verifier.targets.operators import Operator, operator_of
from gradverify.verifier.verify.verification import Live, build_subject

GROWTHS = (1, 4)
"""What is added to the smallest size; one more to each next, so that sizes stay distinct."""

ALONE = 2
"""What is added to one size alone: halves stay whole."""

HELD_OUT = 5
"""What is added to one size alone where a draft is judged: from these sizes nothing was concluded."""

FACTOR = 1.375
"""What a number is multiplied by: exact in binary, and no ratio of small sizes."""


def resized(case: Case) -> Iterator[Case]:
    """The case with every size grown: of the tensors alone, then of literals too.

    The sizes that a spec names are grown, and with them what follows from them (`2*n`); then every number by
    itself, for what only looks as if it did.
    """
    if case.hook:
        return
    made: list[tuple[Input, ...]] = [case.inputs]
    sizes = sorted({size for _, size in case.sizes})
    for growth in GROWTHS:
        spread = {size: size + growth + k for k, size in enumerate(sizes)}
        named = _followed(case.sizes, {name: spread[size] for name, size in case.sizes})
        for grown in (named, {n: n + growth + k for k, n in enumerate(_numbers(case))}):
            plain = tuple(_grown(i, grown) for i in case.inputs)
            for inputs in (plain, tuple(_literal_grown(i, grown) for i in plain)):
                if inputs not in made:
                    made.append(inputs)
                    yield replace(case, id=f"{case.id}, sizes + {growth}", inputs=inputs)


def one_resized(case: Case, growth: int) -> Iterator[tuple[str, list[Case]]]:
    """For each size that the spec names (each number where it names none), the case with it alone grown.

    Which sizes follow it is guessed: what forward takes is right. Of what only has the same number of entries
    one input at a time is left as it is.
    """
    named = case.sizes or tuple((str(n), n) for n in _numbers(case))
    for name, size in named if not case.hook else ():
        grown = {**dict(named), name: size + growth}
        every = tuple(_grown(i, _followed(named, grown)) for i in case.inputs)
        itself = tuple(_grown(i, {size: size + growth}) for i in case.inputs)
        literals = tuple(_literal_grown(i, _followed(named, grown)) for i in every)
        left = [
            (*changed[:k], one, *changed[k + 1 :])
            for changed in (every, itself)
            for k, one in enumerate(case.inputs)
            if one != changed[k] and isinstance(one, TensorInput)
        ]
        sizes = ",".join(f"{n}={grown[n]}" for n, _ in case.sizes) or f"{size} -> {size + growth}"
        made = [m for m in dict.fromkeys([every, literals, itself, *left]) if m != case.inputs]
        if made:
            yield name, [replace(case, id=sizes, inputs=inputs) for inputs in made]


def _numbers(case: Case) -> list[int]:
    return sorted({n for i in case.inputs if isinstance(i, TensorInput) for n in i.shape if n > 1})


def _followed(named: Sequence[tuple[str, int]], grown: Mapping[str, int]) -> dict[int, int]:
    """What becomes of each size of a tensor when the named ones become these; the others stay.

    A spec writes `n`, then `2*n` or `n*m`, and seldom `n + 1` or `n + m`: what is seldom is believed last.
    """
    sizes = [(size, grown[name]) for name, size in named]
    pairs = list(combinations(sizes, 2))
    found: dict[int, int] = {}
    for size, becomes in (
        *sizes,
        *((f * size, f * becomes) for f in range(2, MOST_FACTOR + 1) for size, becomes in sizes),
        *((a[0] * b[0], a[1] * b[1]) for a, b in pairs),
        *((size + one, becomes + one) for one in (1, -1) for size, becomes in sizes),
        *((a[0] + b[0], a[1] + b[1]) for a, b in pairs),
    ):
        found.setdefault(size, becomes)
    return {n: m for n, m in found.items() if n > 1}


def generic(case: Case) -> Case:
    """The case with floats that are whole numbers made others: a factor of 1 would leave no trace."""
    return replace(case, inputs=tuple(_made_generic(i) for i in case.inputs))


def _made_generic(one: Input) -> Input:
    if not isinstance(one, LiteralInput) or not isinstance(one.value, float) or not one.value.is_integer():
        return one
    return replace(one, value=one.value * FACTOR if one.value else FACTOR)


def renumbered(case: Case) -> Iterator[Case]:
    """The case with one number changed at a time."""
    for k, one in enumerate(case.inputs):
        value = one.value if isinstance(one, LiteralInput) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        for other in (value * FACTOR, value / FACTOR) if isinstance(value, float) else (value + 1, value + 2):
            inputs = (*case.inputs[:k], LiteralInput(one.name, other), *case.inputs[k + 1 :])
            yield replace(case, id=f"{case.id}, {one.name} = {other:g}", inputs=inputs)


def _grown(one: Input, grown: dict[int, int]) -> Input:
    if not isinstance(one, TensorInput) or one.value is not None:
        return one
    return replace(one, shape=tuple(grown.get(n, n) for n in one.shape))


def _literal_grown(one: Input, grown: dict[int, int]) -> Input:
    if not isinstance(one, LiteralInput):
        return one
    value = one.value
    if isinstance(value, tuple):
        return replace(one, value=tuple(grown.get(n, n) if type(n) is int else n for n in value))
    return replace(one, value=grown.get(value, value)) if type(value) is int else one


MOST_CASES = 4
"""Cases of the plan at which a suggestion is judged, beside those made here."""

MOST_ENTRIES = 40_000
"""Entries of a Jacobian that is judged at another size than the first: one more is not worth the wait."""

SECOND = "its second derivative would not be right"


Source = tuple[Callable[..., Any] | None, str]
"""What the gradient is derived from, None for forward itself; and its words."""


@dataclass(frozen=True)
class _Target:
    """The target of a request, alive."""

    request: Verify
    live: Live
    function: type[Function] | Operator
    parameters: tuple[str, ...]
    """What backward answers for."""
    by_name: tuple[str, ...] = ()
    """What an operator takes by name alone, behind the others."""

    def sample(self, case: Case, draw: int = 0, made: type[Function] | None = None) -> Sample | None:
        """One point of a case, of another Function in its place where one is `made`; None if refused."""
        subject = self.subject(case)
        if subject is not None and made is not None:
            subject = replace(subject, function=made.apply, reference=None, learnt={})
        sample = None if subject is None else prepare(subject, case, Point.TYPICAL, draw)
        return sample if isinstance(sample, Sample) else None

    def subject(self, case: Case) -> Subject | None:
        """The target ready to be called on a case."""
        built = build_subject(self.request, self.live, case, None)
        return None if isinstance(built, Finding) else built[0]


def suggest(request: Verify, live: Live) -> Suggested | NotSuggested:
    """The backward of a target as its author would write it, judged before it is given."""
    target = _target(request, live)
    if isinstance(target, NotSuggested):
        return target
    reasons, drafts = _unseen_forward(target), []
    for source in _sources(target):
        result = guard.call(_draft, target, source)
        if isinstance(result, Raised):
            said = first_line(result.error.message)
            own = result.error.type == CannotSuggestError.__name__
            reasons.append(f"from {source[1]}: {said if own else f'{result.error.type}: {said}'}")
        else:
            drafts.append(result.value)
    for draft in sorted(drafts, key=lambda d: d.length):
        judged = _judged(target, draft)
        if isinstance(judged, Suggested):
            return judged
        reasons.append(f"from {draft.source[1]}: {judged.reason}")
    return NotSuggested("; ".join(dict.fromkeys(reasons)))


def _target(request: Verify, live: Live) -> _Target | NotSuggested:
    kind, found = request.target.kind, parameters_of(live.value)
    operator = operator_of(live.value)
    if operator is not None:
        by_position = tuple(p.name for p in found if not p.keyword_only)
        return _Target(request, live, operator, by_position, tuple(p.name for p in found if p.keyword_only))
    if kind is not TargetKind.FUNCTION:
        what = "a module" if kind is TargetKind.MODULE else "a plain callable"
        return NotSuggested(
            f"{what} has no backward of its own: torch differentiates what it calls. Name the "
            "torch.autograd.Function or the operator in it that has one"
        )
    if any(p.variadic or p.keyword_only for p in found):
        return NotSuggested("its forward takes a varying number of arguments")
    return _Target(request, live, live.value, tuple(p.name for p in found))


def _unseen_forward(target: _Target) -> list[str]:
    """Why forward itself tells nothing; empty where it may."""
    if not isinstance(target.function, Operator) or target.function.implementation is not None:
        return []
    return ["from forward itself: it is registered with the dispatcher, and no Python of it can be followed"]


def _sources(target: _Target) -> Iterator[Source]:
    if not _unseen_forward(target):
        yield None, "forward itself"
    subject = target.subject(target.request.plan.cases[0])
    if subject is not None and subject.reference is not None:
        order = (*target.parameters, *target.by_name)
        places = {name: [k] for k, name in enumerate(order)}
        yield subject.reference_by_name(places), "the reference"


@dataclass(frozen=True)
class _Draft:
    """A backward that is written and not yet judged."""

    source: Source
    recording: Recording
    found: Constants
    parameters: tuple[str, ...]
    optional: tuple[str, ...]
    varied: bool
    decorators: tuple[str, ...]
    unlike: tuple[tuple[str, str, int], ...]

    def written(self, *decorators: str) -> Written:
        """Its text, with more decorators."""
        every = (*self.decorators, *decorators)
        return write(self.recording, self.found, self.parameters, self.optional, every)

    @property
    def length(self) -> tuple[int, int, int]:
        """What is better has no private names, less to save, less to read."""
        text = self.written()
        return text.backward.count("aten."), len(text.extra) + len(text.attributes), len(text.backward)


def _draft(target: _Target, source: Source) -> _Draft:
    """Raises `CannotSuggestError`, and whatever user code raises."""
    base_case = target.request.plan.cases[0]
    sample = target.sample(generic(base_case)) or target.sample(base_case)
    if sample is None:
        raise CannotSuggestError("forward does not take the inputs of its first case")
    base = _recording(sample, target, source)
    others, unlike = _others(target, source, base)
    if unlike and not others:
        raise CannotSuggestError(_unlike(base, unlike))
    found = constants(base, others)
    if found.fixed:
        raise CannotSuggestError(
            f"it would hold at these sizes alone: how {found.fixed[0]} comes from them was not found "
            f"(sums, multiples, halves and products of two are known)"
        )
    given = target.parameters
    decorators: tuple[str, ...] = ()
    if not isinstance(target.function, Operator):  # torch gives an operator the defaults of what is left out
        given = given[: len({a.in_list or a.name for a in sample.arguments})]
        decorators = ("@staticmethod",)
    return _Draft(source, base, found, given, _optional(target), bool(others), decorators, tuple(unlike))


def _recording(sample: Sample, target: _Target, source: Source) -> Recording:
    recorded = record(sample, target.function, source[0])
    return Recording(recorded, cut(recorded))


def _others(
    target: _Target, source: Source, base: Recording
) -> tuple[list[Recording], list[tuple[str, str, int]]]:
    """The same program at other inputs; where another one runs: the size, the case, how many operations."""
    others, unlike = [], []
    first, *rest = target.request.plan.cases
    alike = [case for case in (*target.request.plan.spares, *rest) if _options(case) == _options(first)]
    groups = [("", [case]) for case in (*alike[:MOST_CASES], *resized(first), *renumbered(first))]
    for name, cases in (*one_resized(first, ALONE), *groups):
        made = next((r for case in cases if (r := _varied(case, target, source)) is not None), None)
        if made is None:
            continue
        if same_program(base, made):
            others.append(made)
        elif made.recorded.operations != base.recorded.operations:
            unlike.append((name, cases[0].id, made.recorded.operations))
    return others, unlike


def _varied(case: Case, target: _Target, source: Source) -> Recording | None:
    sample = target.sample(case)
    if sample is None:
        return None
    made = guard.call(_recording, sample, target, source)
    return None if isinstance(made, Raised) else made.value


def _unlike(base: Recording, unlike: Sequence[tuple[str, str, int]]) -> str:
    """That forward runs other operations elsewhere, in words."""
    names = [f"`{name}`" for name, _, _ in unlike if name]
    _, case, count = unlike[0]
    ran = f"({base.recorded.operations} operations, {count} at {case})"
    if not names:
        said = "forward runs other operations at other inputs"
        return f"{said} {ran}, and only straight code can be written out"
    return (
        f"forward loops over {' and '.join(dict.fromkeys(names))} {ran}, and a backward that loops is not "
        "written. Write the loop by hand: the same steps, last one first"
    )


def _options(case: Case) -> list[object]:
    literals = (i.value for i in case.inputs if isinstance(i, LiteralInput))
    return [type(value) if isinstance(value, int | float) else value for value in literals]


def _optional(target: _Target) -> tuple[str, ...]:
    """Parameters that some case leaves out."""
    given = [i for case in target.request.plan.cases for i in case.inputs]
    absent = {i.name for i in given if isinstance(i, LiteralInput) and i.value is None}
    first = {i.name for i in target.request.plan.cases[0].inputs if not isinstance(i, LiteralInput)}
    return tuple(name for name in target.parameters if name in absent & first)


def _judged(target: _Target, draft: _Draft, *decorators: str) -> Suggested | NotSuggested:
    """Judge a written backward; without its second derivative where only that is wrong."""
    written, outputs = draft.written(*decorators), tuple(draft.recording.recorded.outputs)
    made = candidate(target.function, written, (*target.parameters, *target.by_name), outputs)
    first, *rest = target.request.plan.cases[:MOST_CASES]
    tried, only = [], []
    spares = [case for case in target.request.plan.spares if _options(case) == _options(first)]
    alone = [cases for growth in (ALONE, HELD_OUT) for _, cases in one_resized(first, growth)]
    known = (first, *rest, *spares)
    for cases in (*([case] for case in (*known, *resized(first), *renumbered(first))), *alone):
        case = next((c for c in cases if target.sample(c) is not None), cases[0])
        wrong = _wrong(target, made, case, draws=2 if case is first else 1)
        if wrong is None:
            continue
        if not wrong:
            tried.append(case.id)
        elif _options(case) != _options(first):
            only.append(case.id)
        elif case not in known and _varied(case, target, draft.source) is None:
            continue  # Sizes made here, at which torch has no derivative either.
        elif wrong.startswith(SECOND) and not decorators:
            return _judged(target, draft, ONCE)
        else:
            return NotSuggested(_refused(draft, case, wrong))
    if not tried:
        return NotSuggested("nothing could be judged at the inputs that are known")
    return Suggested(
        backward=written.backward,
        source=draft.source[1],
        saved=written.saved if written.extra else (),
        attributes=written.attributes,
        judged_at=tuple(dict.fromkeys(tried)),
        not_at=tuple(only),
        sizes_varied=draft.varied,
    )


def _refused(draft: _Draft, case: Case, wrong: str) -> str:
    """Why a draft is not shown: a mishap of it is none of the user's Function."""
    if wrong.startswith(SECOND):
        return f"{wrong} (at {case.id})"
    if draft.unlike:
        return _unlike(draft.recording, draft.unlike)
    return f"a backward was derived from it and rejected: tried at {case.id} it was not right ({wrong})"


def _wrong(target: _Target, made: type[Function], case: Case, draws: int) -> str | None:
    """What is wrong with a candidate at a case: empty for nothing, None where nothing can be judged.

    At several draws it is judged whatever it costs, and to second order at the first of them.
    """
    if target.sample(case) is None:
        return None
    judged = False
    for draw in range(draws):
        sample = target.sample(case, draw, made)
        if sample is None:
            return "it does not run"
        if draws == 1 and sample.inputs.size * sample.problem.outputs.size > MOST_ENTRIES:
            return None
        first = first_order(sample)
        if first.result.findings:
            return first.result.findings[0].message
        if not first.verified or first.result.uncovered:
            continue
        judged = True
        if draws > 1 and draw == 0:
            second = second_order(sample)
            if second.outcome is Outcome.FAILED:
                return f"{SECOND}: {second.findings[0].message}"
    return "" if judged else None
