"""GV401 to GV403: forward or backward writes into what is not its own.

How a write is seen is told in `numerics/snapshots.py`.

Whether a write was asked for: an option of the call decides where backward writes, and nothing else. At
another value of it forward returns the same and grad_output is left alone. Options are what a call is given
beside tensors: one that is True, which asks for the write where False does not, or one whose values the spec
lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Finding, Severity, TargetKind, tensors_of
from gradverify.verifier import guard
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import Snapshot
from gradverify.verifier.variations.call import Call, backward, called
from gradverify.verifier.variations.verified import Varied, Verified


def asked_by(base: Verified) -> str:
    """The option that asks backward to write into grad_output, and what of it does not; else empty."""
    for name, value, other, arguments in _otherwise(base.sample):
        if _leaves_grad_output(base, arguments):
            return f"`{name}={value!r}` asks for it: with {other!r} it is left alone"
    return ""


def _leaves_grad_output(base: Verified, arguments: Sequence[Argument]) -> bool:
    call = called(base.sample, arguments)
    if isinstance(call, Raised) or base.forward_difference(call.value.outputs) is not None:
        return False
    given = [Snapshot.of(t) for t in base.grad_outputs()]
    result = backward(base.sample, call.value, [one.tensor for one in given])
    return not isinstance(result, Raised) and not any(one.changed for one in given)


def _otherwise(sample: Sample) -> Iterator[tuple[str, Any, Any, Sequence[Argument]]]:
    """(option, its value, another value, the arguments with that one)."""
    arguments = _with_every_default(sample)
    for place, argument in enumerate(arguments):
        value = argument.value
        listed = sample.subject.options.get(argument.name, ())
        asked_not = (False,) if value is True else ()
        others = asked_not if type(value) is bool else tuple(v for v in listed if v != value)
        for other in others:
            changed = replace(argument, value=other)
            yield argument.name, value, other, (*arguments[:place], changed, *arguments[place + 1 :])


def _with_every_default(sample: Sample) -> tuple[Argument, ...]:
    """The arguments of a Function, and after them the defaults of the parameters that were left out."""
    arguments, defaults = sample.arguments, sample.subject.defaults
    if sample.subject.function_class is None or not arguments:
        return arguments
    given = {a.in_list or a.name for a in arguments}
    if not given <= defaults.keys():
        return arguments
    last = max(k for k, name in enumerate(defaults) if name in given)
    left_out = takewhile(lambda pair: pair[1] is not ..., list(defaults.items())[last + 1 :])
    return (*arguments, *(Argument(name, default) for name, default in left_out))


REMEDY_GRAD_OUTPUT = (
    "Compute out of place (g * 2, not g.mul_(2)): autograd may hand the same grad_output to others, who then "
    "get another gradient. Clone it first where a kernel must write."
)
REMEDY_INPUT = (
    "Work on a copy, or declare the write: ctx.mark_dirty(x) and return x. A running buffer that forward "
    "updates is declared in the spec with `mutated: true`."
)
REMEDY_CALLERS = "Work on a copy: the caller still holds this tensor."
REMEDY_SAVED = (
    "Clone it before writing: it is still needed, by a second backward (retain_graph) or by whoever else "
    "holds it."
)


def mutation(base: Verified) -> Varied:
    """Copies of everything that forward and backward are given, compared after each of them."""
    sample = base.sample
    arguments: dict[int, Snapshot] = {}

    def noted(position: int, value: Tensor) -> Tensor:
        if value.layout is torch.strided:
            arguments[position] = Snapshot.of(value)
        return value

    made = called(sample, arrange=noted)
    if isinstance(made, Raised):
        return Varied()
    call = made.value
    findings = list(_written_by_forward(sample, call, arguments))
    written = {f.input for f in findings}
    grad_outputs = [Snapshot.of(t) for t in base.grad_outputs()]
    held = list(_held(sample, call))
    outputs = [Snapshot.of(o) for o in call.outputs if _is_readable(o)]
    now = {i: Snapshot.of(s.tensor) for i, s in arguments.items() if sample.arguments[i].name not in written}
    result = backward(sample, call, [s.tensor for s in grad_outputs], retain=True)
    if isinstance(result, Raised):
        return Varied(tuple(findings))
    given = (
        (f"grad_output of output {position}" if len(grad_outputs) > 1 else "grad_output", position, snapshot)
        for position, snapshot in zip(sample.problem.output_positions, grad_outputs, strict=True)
    )
    for words, position, snapshot in given:
        if snapshot.changed:
            said = f"backward writes into {words}{snapshot.by_how_much}"
            findings.append(_written_grad_output(base, said, position))
            break
    saved = [one for one in held if one[2].changed and one[1] not in _declared(sample)]
    if saved:
        words, name, snapshot = saved[0]
        said = f"backward writes into {words}{snapshot.by_how_much}"
        found = sample.finding("GV403", said, hint=REMEDY_SAVED, input=name)
        is_seen = any(one[1] for one in saved) or any(one.changed for one in outputs)
        findings.append(found if is_seen or not _is_repeated(base, call) else _unseen(found))
    else:
        findings += _written_by_backward(sample, now)
    return Varied(tuple(findings))


def _is_repeated(base: Verified, call: Call) -> bool:
    """Whether a second backward through the graph of a call gives the verified gradient."""
    again = backward(base.sample, call, base.grad_outputs())
    return not isinstance(again, Raised) and base.difference(again.value) is None


def _unseen(found: Finding) -> Finding:
    """A write into what nobody else holds, which changes no gradient."""
    return replace(
        found,
        severity=Severity.NOTE,
        message=f"{found.message}; a second backward gives the same gradient",
        hint="Nothing need be done: nobody else holds it.",
    )


def _written_grad_output(base: Verified, said: str, position: int) -> Finding:
    """An error; a note where an option of the call asks for it."""
    asked = asked_by(base)
    made = base.finding("GV401", said, hint=REMEDY_GRAD_OUTPUT, output=position)
    if not asked:
        return made
    return replace(
        made,
        severity=Severity.NOTE,
        message=f"{said}; {asked}",
        hint="Autograd may pass the same grad_output to other nodes: they would see the changed values.",
    )


def saved_tensors(call: Call) -> tuple[Tensor, ...]:
    """What forward saved for backward; empty where that cannot be read."""
    node = call.node
    result = None if node is None else guard.call(lambda: node.saved_tensors)
    if result is None or isinstance(result, Raised):
        return ()
    return tuple(t for t in result.value if isinstance(t, Tensor))


def is_same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share their storage."""
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return False
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata and a.numel() > 0  # noqa: SLF001


def _is_readable(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, Tensor) and value.layout is torch.strided


def _declared(sample: Sample) -> frozenset[str]:
    """Names of the inputs that the spec declares as written into."""
    return frozenset(t.name for i in sample.case.inputs for t in tensors_of(i) if t.mutated)


def _written_by_forward(sample: Sample, call: Call, before: Mapping[int, Snapshot]) -> Iterator[Finding]:
    if sample.subject.operator is not None:  # what its schema says of writes is GV504's to judge
        return
    subject = sample.subject
    is_function = subject.across is not None and subject.target.kind is TargetKind.FUNCTION
    followed = subject.function_class is None and not is_function
    for position, snapshot in before.items():
        argument = sample.arguments[position]
        dirty = any(r is snapshot.tensor for r in call.returned)
        # autograd itself follows what a composite writes; only a write behind its back is a mistake there.
        changed = snapshot.rewritten and not snapshot.counted if followed else snapshot.changed
        if not changed or dirty or argument.name in _declared(sample):
            continue
        read = any(is_same_memory(t, snapshot.tensor) for t in saved_tensors(call))
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


def _written_by_backward(sample: Sample, before: Mapping[int, Snapshot]) -> Iterator[Finding]:
    for position, snapshot in before.items():
        name = sample.arguments[position].name
        if snapshot.changed and name not in _declared(sample):
            said = f"backward writes into the input `{name}`{snapshot.by_how_much}"
            yield sample.finding("GV402", said, hint=REMEDY_CALLERS, input=name)


def _held(sample: Sample, call: Call) -> Iterator[tuple[str, str | None, Snapshot]]:
    """What must outlive backward: (in words, name of the input it is, as it was)."""
    saved = [t for t in saved_tensors(call) if _is_readable(t)]
    for number, tensor in enumerate(saved):
        words, name = f"the saved tensor {number}, of shape {list(tensor.shape)}", None
        for argument, passed in zip(sample.arguments, call.passed, strict=True):
            if isinstance(passed, Tensor) and is_same_memory(passed, tensor):
                words, name = f"the saved input `{argument.name}`", argument.name
        shared = [o for o in call.outputs if name is None and is_same_memory(o, tensor)]
        if shared:
            whole = any(o.shape == tensor.shape for o in shared)
            words = "the saved output" if whole else f"{words}, of which an output is a part"
        yield words, name, Snapshot.of(tensor)
    for output in call.outputs:
        if _is_readable(output) and not any(is_same_memory(output, tensor) for tensor in saved):
            yield "the output", None, Snapshot.of(output)
