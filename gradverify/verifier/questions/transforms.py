"""What torch's transforms make of a verified sample: the capability table and what is wrong in it.

Only where the first order is verified: each transform is then held against the verified gradient.
"""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from gradverify.model import Finding, RaisedError, Severity, TargetKind
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.guard.raised_errors import describe
from gradverify.verifier.numerics.calling import Tensors, copies, returned_tensors, substitute
from gradverify.verifier.numerics.problem import Layout
from gradverify.verifier.questions.findings import CheckResult, FirstOrder, apart, listed_names
from gradverify.verifier.questions.reading import without_reading
from gradverify.verifier.questions.subject import Sample, Subject
from gradverify.verifier.questions.verified import (
    Variant,
    Verified,
    called,
    drawn_again,
    is_accident,
    is_refusal,
    known,
)
from gradverify.verifier.targets.operators import Operator, with_keywords
from gradverify.verifier.witnesses.claim import rows_at
from gradverify.verifier.witnesses.values import probe

EVERY_SET = 3
"""Of so many inputs every set gets tangents; of more each alone, and all."""

NOT_RUN, UNSUPPORTED = CheckResult(capability="not-run"), CheckResult(capability="no")

ROUNDINGS = 10.0
"""Roundings of the terms of both sides by which these may be apart."""

JVP_HINT = (
    "jvp gets one tangent for each input of forward (None for what is not a tensor) and returns the "
    "derivative of each output in that direction: the transpose of what backward computes."
)


def _answered(*found: Finding | None) -> CheckResult:
    """A transform that is asked is right, refuses (notes), or is wrong."""
    result = CheckResult.of(*found)
    refuses = all(one.severity is Severity.NOTE for one in result.findings)
    return replace(result, capability=("no" if refuses else "wrong") if result.findings else "yes")


def forward_mode(base: Verified, first: FirstOrder) -> CheckResult:
    """GV501: for a direction v, u·(J v) must be (Jᵀ u)·v, which is known: in each input alone, and in all.

    Of up to three inputs in every set of them: a term may be forgotten where two have tangents.

    At a kink both may choose another derivative and be right, so nothing is said there. A callable that is no
    Function promises nothing.
    """
    function_class, count = base.subject.function_class, len(base.names)
    is_sparse = any(p.layout is not torch.strided for p in base.sample.problem.primals)
    if is_sparse or (function_class is not None and function_class.jvp is Function.jvp):
        return UNSUPPORTED
    if first.result.uncovered:
        return NOT_RUN
    sizes = range(1, count + 1) if count <= EVERY_SET else (1, count)
    for chosen in (one for size in sizes for one in combinations(range(count), size)):
        when = f"in a random direction in {listed_names([base.names[k] for k in chosen])}"
        v = _direction(base, chosen)
        pushed = _pushed(base, v, chosen)
        if isinstance(pushed, Raised) and function_class is None:
            return UNSUPPORTED
        if isinstance(pushed, Raised):
            variant = Variant("GV501", when, JVP_HINT, is_mistake=lambda error: not is_refusal(error))
            return _answered(variant.raised(base, pushed.error, "jvp"))
        differs = _compared(base, v, pushed.value)
        if differs:
            said = f"the forward-mode derivative {when} is {differs}"
            return _answered(base.sample.finding("GV501", said, hint=JVP_HINT))
    return _answered()


def _direction(base: Verified, chosen: tuple[int, ...]) -> Tensor:
    """A random direction in the chosen inputs, flat; zero where entries are held."""
    v = base.inputs.unflatten(probe(base.inputs.size, base.sample.case.seed + 211))
    for k, (part, argument) in enumerate(zip(v, base.sample.differentiable, strict=True)):
        held = argument.held if k in chosen else ...
        if held is not None:
            part[held] = 0.0
    return base.inputs.flatten(v)


def _pushed(base: Verified, v: Tensor, chosen: tuple[int, ...]) -> Returned[Tensor] | Raised:
    """J v, flat. A callable that is no Function may drop every tangent: it has no forward mode."""
    tangents, problem, arguments = base.inputs.unflatten(v), base.sample.problem, base.sample.arguments
    places = [k for k, a in enumerate(arguments) if a.differentiable]

    def arrange(passed: list[Any]) -> list[Any]:
        made, primals = list(passed), copies(problem.primals)
        for k in chosen:
            primal = primals[k].requires_grad_().clone()
            with warnings.catch_warnings(action="ignore"):  # of what torch loads for its first dual number
                dual = forward_ad.make_dual(primal, tangents[k])  # type: ignore[no-untyped-call]
            made[places[k]] = arguments[places[k]].moved(dual)
        return made

    with forward_ad.dual_level():
        call = called(base.sample, arrange=arrange)
        if isinstance(call, Raised):
            return call
        found = [forward_ad.unpack_dual(t).tangent for t in call.value.outputs]  # type: ignore[no-untyped-call]
        if base.subject.function_class is None and all(t is None for t in found):
            return Raised(RaisedError("NotImplementedError", "forward drops tangents"))
        return guard.call(problem.outputs.flatten, found)


def _compared(base: Verified, v: Tensor, pushed: Tensor) -> str:
    """How both sides differ by more than the tolerance and than rounding explains; else empty."""
    settings, problem = base.subject.settings, base.sample.problem
    one, other = base.u * pushed, base.gradient * v
    size = float(one.abs().sum() + other.abs().sum())
    forward, backward = one.sum().item(), other.sum().item()
    off, bound = abs(forward - backward), settings.atol + (settings.rtol + ROUNDINGS * base.rounding) * size

    def again(x: Tensor) -> Tensor | None:
        rows = rows_at(problem, x, base.u[None])
        return None if rows is None else rows @ v

    if off <= bound or off <= float(base.spread_of(again, torch.zeros(1))):
        return ""
    forwards, backwards = apart(forward, backward)
    return f"{forwards} where the verified backward gives {backwards}"


CLOSE = 1e-5
"""Relative and absolute difference that tracing may make: no mistake of a registration is so small."""

MOST_SAID = 300
"""Characters of what opcheck says in the message of a finding."""

FAKE, TRACING = "test_faketensor", "test_aot_dispatch_dynamic"

WARNED = "test_autograd_registration"
"""What it asserts is a warning: gradients are right."""

TESTS = {
    "test_schema": "Name what is written in `mutates_args`, as `Tensor(a!)` in a schema, and return new "
    "tensors (.clone()): torch.compile moves and drops what no schema declares.",
    WARNED: "Register backward with torch.library.register_autograd, or under the key Autograd, and the "
    "plain kernel under CPU or CUDA.",
    FAKE: "What `register_fake` got must return a tensor of the same shape, dtype, strides and device: "
    "torch.compile allocates and plans by it. It gets tensors without values.",
    TRACING: "Forward, backward and setup_context are traced with tensors that have no values: no branches "
    "on values, no `.item()`, NumPy or pointers in them. What cannot be traced belongs into its own "
    "operator.",
}
"""What to do where a test of opcheck fails: in the order in which one explains the next."""

ASSERTS = ("torch.testing", "torch._subclasses.fake_utils", "torch._subclasses.schema_check_mode")
"""Where torch raises the exception by which a test fails: any other one only stops it, as that of an operator
without a fake kernel."""

STOPPED = (
    "torch.compile and export may refuse it as well. If they are not meant to be supported, nothing need be "
    "done."
)


def registration(base: Verified) -> CheckResult:
    """GV504: what an operator promises torch beside its gradient, by the tests of opcheck, one by one.

    Tracing, which builds on the fake kernel, comes only where that holds, and not for an operator that draws
    random numbers: it would draw others.
    """
    operator, findings = base.subject.operator, list[Finding]()
    if operator is None:
        return NOT_RUN
    for test, hint in TESTS.items():
        if test == TRACING and (base.draws or any(f.part == FAKE for f in findings)):
            continue
        result = guard.call(_exception_of, base, operator, test)
        error, fails = (result.error, False) if isinstance(result, Raised) else result.value
        if error is None:
            continue
        fails = fails or (test == FAKE and is_accident(error))
        said = " ".join(f"{error.type}: {error.message}".split())[:MOST_SAID]
        how = "fails" if fails else "cannot be run"
        said = f"`{test}` of torch.library.opcheck {how} for `{operator.name}`: {said}"
        severity = Severity.WARNING if test == WARNED else Severity.ERROR
        found = base.sample.finding("GV504", said, hint=hint, severity=severity, part=test, raised=error)
        findings.append(found if fails else replace(found, severity=Severity.NOTE, hint=STOPPED))
    return _answered(*findings)


def _exception_of(base: Verified, operator: Operator, test: str) -> tuple[RaisedError | None, bool]:
    """What one test raised on fresh copies of the sample's arguments, and whether it failed by that."""
    sample, answers, opcheck = base.sample, dict[str, Any](), torch.library.opcheck
    options = dict.fromkeys({"rtol", "atol"} & inspect.signature(opcheck).parameters.keys(), CLOSE)

    def check(*arguments: Any, **named: Any) -> None:  # noqa: ANN401 - the operator's arguments
        asked: dict[str, Any] = {"test_utils": test, "raise_exception": False, **options}
        answers.update(opcheck(operator.overload, arguments, named, **asked))

    # With a graph, an autograd kernel under the wrong key would be held against the fake kernel.
    leaves = [leaf.requires_grad_(test != FAKE) for leaf in copies(sample.problem.primals)]
    sample.problem.random_states.replay()
    given = substitute(sample.arguments, leaves)
    with_keywords(check, sample.subject.target.parameters, [a.name for a in sample.arguments])(*given)
    error = answers[test]
    if not isinstance(error, BaseException):
        return None, False
    *_, place = "", *(f.f_globals.get("__name__", "") for f, _ in traceback.walk_tb(error.__traceback__))
    return describe(error), place.startswith(ASSERTS)


BATCH = 3
"""Elements of the batch where no dimension is as short as `LARGEST_BATCH`."""

LARGEST_BATCH = 8
"""Elements of a batch that is as long as another dimension: one taken for the other does not raise."""

MOST_ALONE = 4
"""So many tensors are left out of the batch in turn."""

VMAP_HINT = (
    "vmap(info, in_dims, *args) gets the batched arguments with the place of the batch dimension of each "
    "in in_dims (None: not batched), and returns (outputs, out_dims)."
)

Dims = tuple[int | None, ...]
"""The batch dimension of each argument; None where all elements share it."""


def batched(base: Verified) -> CheckResult:
    """GV502: hold `torch.vmap` of a Function with a rule of its own against one call for each element.

    The first batch that is wrong is reported, and the first that is refused. Of a rule that torch generates,
    and of a loop over an operator, there is nothing to judge.
    """
    function_class, operator = base.subject.function_class, base.subject.operator
    if function_class is not None and function_class.vmap is Function.vmap:
        return NOT_RUN if function_class.generate_vmap_rule else UNSUPPORTED
    has_rule = function_class is not None or (operator is not None and operator.vmap_rule is not None)
    found: list[Finding | None] = []
    for dims, count in _batchings(base.sample) if has_rule and not base.draws else ():
        loop = _loop(base, dims, count)
        if loop is None:
            continue
        when = f"under torch.vmap with in_dims={dims} and a batch of {count}"
        wrong = Variant("GV502", when, VMAP_HINT).judged(loop, called(loop.sample))
        if wrong is not None and wrong.severity is Severity.ERROR:
            return _answered(wrong)
        found.append(wrong)
    refused = next((one for one in found if one is not None), None)
    return replace(_answered(refused), capability="yes" if None in found else "no") if found else NOT_RUN


def _batchings(sample: Sample) -> Iterator[tuple[Dims, int]]:
    """All over one dimension, a batch of one, each left out, and different dimensions."""
    tensors = [k for k, a in enumerate(sample.arguments) if isinstance(a.value, Tensor)]
    sizes = [n for k in tensors for n in sample.arguments[k].value.shape]
    count = min((n for n in sizes if 1 < n <= LARGEST_BATCH), default=BATCH)
    last = -bool(sizes)
    rows = [(dict.fromkeys(tensors, side), n) for side, n in ((0, count), (last, count), (0, 1))]
    if len(tensors) > 1:
        rows += [({k: last for k in tensors if k != left_out}, count) for left_out in tensors[:MOST_ALONE]]
        rows.append(({k: last * (n % 2) for n, k in enumerate(tensors)}, count))
    for sides, length in rows:
        yield tuple(map(sides.get, range(len(sample.arguments)))), length


def _loop(base: Verified, dims: Dims, count: int) -> Verified | None:
    """What one ordinary call for each element gives, as of one call by the rule; None where one raises."""
    sample, problem = base.sample, base.sample.problem
    drawn = [drawn_again(sample, number) or () for number in range(1, count)]
    if not all(drawn) or any(a.in_list for a in sample.arguments):
        return None
    elements = [
        [a if dims[k] is None else other[k] for k, a in enumerate(sample.arguments)]
        for other in (sample.arguments, *drawn)
    ]
    each = [one for given in elements if (one := base.at(tuple(given))) is not None]
    if len(each) < count:
        return None
    arguments = tuple(
        a
        if (dim := dims[k]) is None
        else replace(a, value=torch.stack([e[k].value for e in elements], dim), step=None)
        for k, a in enumerate(sample.arguments)
    )
    sides = [dims[k] for k, a in enumerate(arguments) if a.differentiable]
    several = zip(*(one.inputs.unflatten(one.gradient) for one in each), strict=True)
    gradient = [sum(g) if (d := sides[k]) is None else torch.stack(g, d) for k, g in enumerate(several)]
    rows = zip(*(problem.outputs.unflatten(one.values) for one in each), strict=True)
    outputs = list(map(torch.stack, rows))
    layout = Layout.of(outputs)

    def by_rule(*given: Any) -> Any:  # noqa: ANN401 - user code's arguments
        def call(*one: Any) -> Tensors:  # noqa: ANN401
            returned = returned_tensors(sample.subject.function(*one))
            return tuple(returned[p] for p in problem.output_positions)

        return torch.vmap(call, in_dims=dims)(*given)

    there = replace(
        sample,
        arguments=arguments,
        problem=replace(
            problem,
            function=by_rule,
            arguments=arguments,
            outputs=layout,
            output_positions=tuple(range(len(outputs))),
        ),
    )
    return replace(
        base,
        sample=there,
        u=layout.flatten([torch.stack([g] * count) for g in base.grad_outputs()]),
        gradient=there.inputs.flatten(gradient),
        values=layout.flatten(outputs),
    )


COMPILED = Variant(
    "GV503",
    "when compiled",
    "torch.compile traces forward and backward once: what they read from Python (attributes, counters, "
    "globals, .item()) is a constant in the compiled code. Pass it as an argument or keep it in tensors. If "
    "there is no such thing, torch.compile itself is wrong here, as it may be where forward writes in place.",
    is_mistake=lambda _: False,
)


def compiled(base: Verified) -> CheckResult:
    """GV503: hold the compiled target against the verified values and gradient.

    The backend is `aot_eager`: it traces and partitions as any other does, and needs no compiler.
    """
    if base.draws:
        return NOT_RUN
    problem, target = base.sample.problem, base.subject.function

    def through(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        def plain(*given: Any) -> Any:  # noqa: ANN401
            return target(*given)

        torch._dynamo.reset()  # noqa: SLF001 - the documented way to forget what was compiled for another case
        return torch.compile(plain, backend="aot_eager")(*arguments)

    with without_reading(base.subject.function_class):
        call = called(replace(base.sample, problem=replace(problem, function=through)))
        return _answered(COMPILED.judged(base, call))


TRANSFORMS: dict[str, tuple[str, Callable[[Verified, FirstOrder], CheckResult]]] = {
    "jvp": ("GV501", forward_mode),
    "vmap": ("GV502", lambda base, _: batched(base)),
    "compile": (COMPILED.code, lambda base, _: compiled(base)),
    "opcheck": ("GV504", lambda base, _: registration(base)),
}
"""By their names in the capability table: the code that only it can give, and what runs it."""

OF_OWN_RULES = frozenset({"GV501", "GV502"})
"""Codes of rules that a Function writes: these are asked for each combination of options, the others once."""

TRANSFORM_CODES = frozenset(code for code, _ in TRANSFORMS.values())
"""Codes that only a transform can give."""


def transforms(sample: Sample, first: FirstOrder) -> CheckResult:
    """Run every transform that is asked for on a verified sample.

    A module is left out: its parameters are no arguments of its call. So is a target whose gradient is
    deliberately not the derivative, and a point with nothing to differentiate.
    """
    subject = sample.subject
    is_function = subject.is_first_of_options and subject.target.kind is not TargetKind.MODULE
    if not is_function or subject.short or subject.surrogate is not None or not first.verified:
        return CheckResult()
    wanted = {
        name: run
        for name, (code, run) in TRANSFORMS.items()
        if (subject.is_base or code in OF_OWN_RULES) and _is_asked(code, subject)
    }
    base = known(sample) if wanted else None
    if base is None:
        return CheckResult()
    result = CheckResult()
    for name, run in wanted.items():
        answer = run(base, first)
        result = result.beside(replace(answer, capability="", capabilities=((name, answer.capability),)))
    return result


def _is_asked(code: str, subject: Subject) -> bool:
    """Whether it is selected; torch's compiler, which has mistakes of its own, by its whole code alone."""
    select, ignore = subject.settings.select, subject.settings.ignore
    chosen = code in select if code == COMPILED.code else not select or code.startswith(select)
    return chosen and not code.startswith(ignore)
