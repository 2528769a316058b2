"""What a call leaves behind: GV401 to GV403, GV409 and GV411.

One call is made under watch, with a second backward through its graph; calls in a row must let go of memory.

How a write is seen is told in `numerics/calling.py`. An option of the call may ask for one: backward then
leaves grad_output alone at another value of it, at which forward returns the same.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from gradverify.model import Finding, Severity, TargetKind, tensors_of
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import Snapshot, bits_of
from gradverify.verifier.questions.call import Call, backward, called
from gradverify.verifier.questions.samples import with_defaults
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.verified import Variant, Varied, Verified, known

REMEDY_GRAD_OUTPUT = (
    "Compute out of place (g * 2, not g.mul_(2)): autograd may hand the same grad_output to others, who then "
    "get another gradient. Clone it first where a kernel must write."
)
REMEDY_ASKED = "Autograd may pass the same grad_output to other nodes: they would see the changed values."
REMEDY_INPUT = (
    "Work on a copy, or declare the write: ctx.mark_dirty(x) and return x. A running buffer that forward "
    "updates is declared in the spec with `mutated: true`."
)
REMEDY_CALLERS = "Work on a copy: the caller still holds this tensor."
REMEDY_SAVED = (
    "Clone it before writing: it is still needed, by a second backward (retain_graph) or by whoever else "
    "holds it."
)
REMEDY_ATTRIBUTE = (
    "Save inputs and outputs with ctx.save_for_backward and read ctx.saved_tensors: as an attribute they "
    "skip the check for in-place changes, and an output is freed by the garbage collector alone."
)

TWICE = Variant(
    "GV409",
    "in a second backward through the same graph (retain_graph=True)",
    "Backward must leave what it uses as it found it: clone a buffer before accumulating into it, and do not "
    "delete attributes of ctx.",
    " the first time",
)


CALLS = 8
"""Calls that must each leave more tensors alive: a cache of bounded size lets go of the first by then."""


@dataclass(frozen=True)
class _Held:
    """What backward must leave as it was."""

    code: str
    said: str
    remedy: str
    before: Snapshot
    name: str | None = None
    """The input that it is."""
    is_private: bool = False
    """Nobody but backward holds it."""


def watched(base: Verified) -> Varied:
    """Copies of everything that forward and backward are given, compared after each of them."""
    sample = base.sample
    given: dict[int, Snapshot] = {}

    def noted(passed: list[Any]) -> list[Any]:
        given.update({k: Snapshot.of(value) for k, value in enumerate(passed) if _is_readable(value)})
        return passed

    made = called(sample, arrange=noted)
    if isinstance(made, Raised):
        return Varied()
    findings = [*_written_by_forward(sample, made.value, given), *_on_ctx(base, made.value)]
    spared = _declared(sample) | {f.input for f in findings if f.code == "GV402"}
    held = [one for one in _held(sample, made.value) if one.name not in spared]
    grad_outputs = [Snapshot.of(t) for t in base.grad_outputs()]
    result = backward(sample, made.value, [one.tensor for one in grad_outputs], retain=True)
    if isinstance(result, Raised):
        return Varied.of(*findings)
    findings += _written_grad_outputs(base, grad_outputs)
    spoilt = [one for one in held if one.before.changed]
    twice = TWICE.gradient(base, backward(sample, made.value, base.grad_outputs()))
    for one in spoilt[:1]:
        said = f"backward writes into {one.said}{one.before.by_how_much}"
        made_of = sample.finding(one.code, said, hint=one.remedy, input=one.name)
        is_unseen = twice is None and all(other.is_private for other in spoilt)
        findings.append(_unseen(made_of) if is_unseen else made_of)
    is_told = base.found | {"GV401", "GV402", "GV403"} & {f.code for f in findings}
    return Varied.of(*findings, None if is_told else twice, calls=["backward twice"])


def written(sample: Sample) -> tuple[Finding, ...]:
    """What is written into by a backward whose gradient is wrong: that may be why (GV401 to GV403)."""
    base = known(sample)
    findings = () if base is None else watched(replace(base, found=frozenset({"GV101"}))).findings
    return tuple(f for f in findings if f.severity is Severity.ERROR)


def _unseen(found: Finding) -> Finding:
    """A write into what nobody else holds, which changes no gradient."""
    said = f"{found.message}; a second backward gives the same gradient"
    hint = "Nothing need be done: nobody else holds it."
    return replace(found, severity=Severity.NOTE, message=said, hint=hint)


def _written_grad_outputs(base: Verified, grad_outputs: list[Snapshot]) -> Iterator[Finding]:
    """An error; a note where an option of the call asks for it."""
    positions = base.sample.problem.output_positions
    changed = [(p, one) for p, one in zip(positions, grad_outputs, strict=True) if one.changed]
    for position, one in changed[:1]:
        whose = f"grad_output of output {position}" if len(grad_outputs) > 1 else "grad_output"
        said, asked = f"backward writes into {whose}{one.by_how_much}", _asked_by(base)
        found = base.finding("GV401", said, hint=REMEDY_GRAD_OUTPUT, output=position)
        noted = replace(found, severity=Severity.NOTE, message=f"{said}; {asked}", hint=REMEDY_ASKED)
        yield noted if asked else found


def _asked_by(base: Verified) -> str:
    """The option that asks backward to write into grad_output, and what of it does not; else empty."""
    sample = base.sample
    bound = replace(sample.subject, binds_defaults=sample.subject.function_class is not None)
    arguments = with_defaults(sample.arguments, bound)
    for place, argument in enumerate(arguments):
        value = argument.value
        listed = [v for v in sample.subject.options.get(argument.name, ()) if v != value]
        for other in [False][: value is True] if type(value) is bool else listed:
            changed = replace(argument, value=other)
            if _leaves_grad_output(base, (*arguments[:place], changed, *arguments[place + 1 :])):
                return f"`{argument.name}={value!r}` asks for it: with {other!r} it is left alone"
    return ""


def _leaves_grad_output(base: Verified, arguments: tuple[Argument, ...]) -> bool:
    call = called(base.sample, arguments)
    if isinstance(call, Raised) or base.forward_difference(call.value.outputs) is not None:
        return False
    given = [Snapshot.of(t) for t in base.grad_outputs()]
    result = backward(base.sample, call.value, [one.tensor for one in given])
    return not isinstance(result, Raised) and not any(one.changed for one in given)


def _saved_tensors(call: Call) -> tuple[Tensor, ...]:
    """What forward saved for backward; empty where that cannot be read."""
    node = call.node
    result = None if node is None else guard.call(lambda: node.saved_tensors)
    saved = () if result is None or isinstance(result, Raised) else result.value
    return tuple(filter(_is_readable, saved))


def _is_same_memory(a: Any, b: Tensor) -> bool:  # noqa: ANN401
    return (
        _is_readable(a) and a.untyped_storage()._cdata == b.untyped_storage()._cdata and a.numel() > 0  # noqa: SLF001
    )


def _is_readable(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, Tensor) and bits_of(value) is not None


def _declared(sample: Sample) -> set[str | None]:
    """Names of the inputs that the spec declares as written into."""
    return {t.name for i in sample.case.inputs for t in tensors_of(i) if t.mutated}


def _written_by_forward(sample: Sample, call: Call, before: dict[int, Snapshot]) -> Iterator[Finding]:
    subject = sample.subject
    if subject.operator is not None:  # what its schema says of writes is GV504's to judge
        return
    is_function = subject.across is not None and subject.target.kind is TargetKind.FUNCTION
    followed = subject.function_class is None and not is_function
    for position, snapshot in before.items():
        argument = sample.arguments[position]
        dirty = any(r is snapshot.tensor for r in call.returned)
        # autograd itself follows what a composite writes; only a write behind its back is a mistake there.
        changed = snapshot.rewritten and not snapshot.counted if followed else snapshot.changed
        if not changed or dirty or argument.name in _declared(sample):
            continue
        read = any(_is_same_memory(t, snapshot.tensor) for t in _saved_tensors(call))
        serious = argument.differentiable or read
        why = "which requires grad" if argument.differentiable else "which backward reads"
        yield sample.finding(
            "GV402",
            f"forward writes into its input `{argument.name}`{f', {why},' if serious else ''} without "
            f"ctx.mark_dirty{snapshot.by_how_much}",
            hint=REMEDY_INPUT,
            input=argument.name,
            severity=Severity.ERROR if serious else Severity.WARNING,
        )


def _held(sample: Sample, call: Call) -> Iterator[_Held]:
    """What must outlive backward: what forward saved and returned, and its inputs."""
    inputs = [(a, p) for a, p in zip(sample.arguments, call.passed, strict=True) if _is_readable(p)]
    for number, tensor in enumerate(_saved_tensors(call)):
        name = next((a.name for a, passed in inputs if _is_same_memory(passed, tensor)), None)
        is_output = any(_is_same_memory(o, tensor) and o.shape == tensor.shape for o in call.outputs)
        words = f"input `{name}`" if name else "output" if is_output else f"tensor {number}"
        said = f"the saved {words}, of shape {list(tensor.shape)}"
        yield _Held("GV403", said, REMEDY_SAVED, Snapshot.of(tensor), name, is_private=name is None)
    for output in filter(_is_readable, call.outputs):
        yield _Held("GV403", "the output", REMEDY_SAVED, Snapshot.of(output))
    for argument, passed in inputs:
        said = f"the input `{argument.name}`"
        yield _Held("GV402", said, REMEDY_CALLERS, Snapshot.of(passed), argument.name)


def _on_ctx(base: Verified, call: Call) -> Iterator[Finding]:
    """A warning for an input or output of the call that is an attribute of ctx."""
    here = getattr(call.node, "__dict__", {}) if base.sample.subject.across is None else {}
    kept = [(name, one) for name, value in list(here.items()) for one in tree_leaves(value)]
    inputs = list(zip(base.sample.arguments, call.passed, strict=True))
    for attribute, tensor in kept:
        if not isinstance(tensor, Tensor):
            continue
        is_float = tensor.is_floating_point() or tensor.is_complex()
        name = next((a.name for a, p in inputs if p is tensor and is_float), None)
        if name is not None or any(o is tensor for o in call.returned):
            words = "an output" if name is None else f"the input `{name}`"
            said = f"{words} is kept as ctx.{attribute}, not by ctx.save_for_backward"
            yield base.finding("GV411", said, hint=REMEDY_ATTRIBUTE, input=name)
            return


def growing_memory(base: Verified) -> Varied:
    """An error when every call leaves tensors behind that outlive its graph."""
    grows = _alive() < _alive_after_a_call(base)
    if grows:
        counts = [_alive_after_a_call(base, collect=True) for _ in range(CALLS + 1)]
        grows = all(one < later for one, later in pairwise(counts))
    finding = base.finding(
        "GV411",
        f"memory grows with every call: {CALLS} of {CALLS} calls left tensors alive after their "
        "graph was gone",
        hint="Something outside ctx holds them: a list, a dict or an attribute of the class or the module. "
        "Keep what backward needs with ctx.save_for_backward.",
        severity=Severity.ERROR,
    )
    return Varied.of(finding if grows else None, calls=["freed"])


def _alive_after_a_call(base: Verified, *, collect: bool = False) -> int:
    """The tensors after a call; `collect`: without those in cycles, as one through ctx is."""
    call = called(base.sample)
    if not isinstance(call, Raised):
        backward(base.sample, call.value, base.grad_outputs())
    del call
    if collect:
        gc.collect()
    return _alive()


def _alive() -> int:
    """How many tensors Python knows."""
    return sum(issubclass(type(one), Tensor) for one in gc.get_objects())
