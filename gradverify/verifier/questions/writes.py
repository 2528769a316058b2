"""GV401 to GV403, GV409 and GV411: one call under watch, and a second backward through its graph.

How a write is seen is told in `numerics/calling.py`. An option of the call may ask for one: backward then
leaves grad_output alone at another value of it, at which forward returns the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from typing import Any

from torch import Tensor

from gradverify.model import Finding, Severity, TargetKind, tensors_of
from gradverify.verifier import guard
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import Snapshot, bits_of
from gradverify.verifier.questions.call import Call, backward, called
from gradverify.verifier.questions.verified import Variant, Varied, Verified, known

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

TWICE = Variant(
    "GV409",
    "in a second backward through the same graph (retain_graph=True)",
    "Backward must leave what it uses as it found it: clone a buffer before accumulating into it, and do not "
    "delete attributes of ctx.",
    " the first time",
)


def watched(base: Verified, found: frozenset[str]) -> Varied:
    """Copies of everything that forward and backward are given, compared after each of them."""
    sample = base.sample
    given: dict[int, Snapshot] = {}

    def noted(passed: list[Any]) -> list[Any]:
        given.update({k: Snapshot.of(value) for k, value in enumerate(passed) if _is_readable(value)})
        return passed

    made = called(sample, arrange=noted)
    if isinstance(made, Raised):
        return Varied()
    call = made.value
    findings = [*_written_by_forward(sample, call, given), *_on_ctx(base, call)]
    written = {f.input for f in findings if f.code == "GV402"}
    held = list(_held(sample, call))
    outputs = [Snapshot.of(o) for o in call.outputs if _is_readable(o)]
    still = {i: Snapshot.of(s.tensor) for i, s in given.items() if sample.arguments[i].name not in written}
    grad_outputs = [Snapshot.of(t) for t in base.grad_outputs()]
    result = backward(sample, call, [s.tensor for s in grad_outputs], retain=True)
    if isinstance(result, Raised):
        return Varied(tuple(findings))
    findings += _written_grad_outputs(base, grad_outputs)
    saved = next((one for one in held if one[2].changed and one[1] not in _declared(sample)), None)
    again = TWICE.gradient(base, call)
    if saved is not None:
        words, name, snapshot = saved
        said = f"backward writes into {words}{snapshot.by_how_much}"
        is_seen = name is not None or again is not None or any(one.changed for one in outputs)
        spoilt = sample.finding("GV403", said, hint=REMEDY_SAVED, input=name)
        findings.append(spoilt if is_seen else _unseen(spoilt))
    else:
        findings += _written_by_backward(sample, still)
    if again is not None and not found and not {"GV401", "GV402", "GV403"} & {f.code for f in findings}:
        findings.append(again if isinstance(again, Finding) else TWICE.raised(base, again))
    return Varied(tuple(findings), replace(Varied().swept, calls=("backward twice",)))


def written(sample: Sample) -> tuple[Finding, ...]:
    """What is written into by a backward whose gradient is wrong: that may be why (GV401 to GV403)."""
    base = known(sample)
    findings = () if base is None else watched(base, frozenset({"GV101"})).findings
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
        hint = "Autograd may pass the same grad_output to other nodes: they would see the changed values."
        noted = replace(found, severity=Severity.NOTE, message=f"{said}; {asked}", hint=hint)
        yield noted if asked else found


def _asked_by(base: Verified) -> str:
    """The option that asks backward to write into grad_output, and what of it does not; else empty."""
    sample = base.sample
    arguments = _with_every_default(sample)
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


def _with_every_default(sample: Sample) -> tuple[Argument, ...]:
    """The arguments of a Function, and after them the defaults of the parameters that were left out."""
    arguments, defaults = sample.arguments, sample.subject.defaults
    given = {a.in_list or a.name for a in arguments}
    if sample.subject.function_class is None or not given or not given <= defaults.keys():
        return arguments
    last = max(k for k, name in enumerate(defaults) if name in given)
    left_out = takewhile(lambda pair: pair[1] is not ..., list(defaults.items())[last + 1 :])
    return (*arguments, *(Argument(name, default) for name, default in left_out))


def _saved_tensors(call: Call) -> tuple[Tensor, ...]:
    """What forward saved for backward; empty where that cannot be read."""
    node = call.node
    result = None if node is None else guard.call(lambda: node.saved_tensors)
    if result is None or isinstance(result, Raised):
        return ()
    return tuple(t for t in result.value if isinstance(t, Tensor))


def _is_same_memory(a: Tensor, b: Tensor) -> bool:
    if not (_is_readable(a) and _is_readable(b)):
        return False
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata and a.numel() > 0  # noqa: SLF001


def _is_readable(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, Tensor) and bits_of(value) is not None


def _declared(sample: Sample) -> frozenset[str]:
    """Names of the inputs that the spec declares as written into."""
    return frozenset(t.name for i in sample.case.inputs for t in tensors_of(i) if t.mutated)


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


def _written_by_backward(sample: Sample, before: dict[int, Snapshot]) -> Iterator[Finding]:
    for position, snapshot in before.items():
        name = sample.arguments[position].name
        if snapshot.changed and name not in _declared(sample):
            said = f"backward writes into the input `{name}`{snapshot.by_how_much}"
            yield sample.finding("GV402", said, hint=REMEDY_CALLERS, input=name)


def _held(sample: Sample, call: Call) -> Iterator[tuple[str, str | None, Snapshot]]:
    """What must outlive backward: (in words, name of the input it is, as it was)."""
    saved = [t for t in _saved_tensors(call) if _is_readable(t)]
    for number, tensor in enumerate(saved):
        words, name = f"the saved tensor {number}, of shape {list(tensor.shape)}", None
        for argument, passed in zip(sample.arguments, call.passed, strict=True):
            if isinstance(passed, Tensor) and _is_same_memory(passed, tensor):
                words, name = f"the saved input `{argument.name}`", argument.name
        shared = [o for o in call.outputs if name is None and _is_same_memory(o, tensor)]
        if shared:
            whole = any(o.shape == tensor.shape for o in shared)
            words = "the saved output" if whole else f"{words}, of which an output is a part"
        yield words, name, Snapshot.of(tensor)
    for output in call.outputs:
        if _is_readable(output) and not any(_is_same_memory(output, tensor) for tensor in saved):
            yield "the output", None, Snapshot.of(output)


def _on_ctx(base: Verified, call: Call) -> list[Finding]:
    """A warning for an input or output of the call that is an attribute of ctx."""
    if base.sample.subject.across is not None:
        return []
    for attribute, tensor in _attributes(call.node):
        pairs = zip(base.sample.arguments, call.passed, strict=True)
        is_float = tensor.is_floating_point() or tensor.is_complex()
        name = next((a.name for a, p in pairs if p is tensor and is_float), None)
        if name is not None or any(o is tensor for o in call.returned):
            words = "an output" if name is None else f"the input `{name}`"
            return [
                base.finding(
                    "GV411",
                    f"{words} is kept as ctx.{attribute}, not by ctx.save_for_backward",
                    hint="Save inputs and outputs with ctx.save_for_backward and read ctx.saved_tensors: as "
                    "an attribute they skip the check for in-place changes, and an output is freed by the "
                    "garbage collector alone.",
                    input=name,
                )
            ]
    return []


def _attributes(node: Any) -> Iterator[tuple[str, Tensor]]:  # noqa: ANN401
    """Tensors among the attributes of ctx, also inside a list, tuple or dict."""
    for name, value in list(getattr(node, "__dict__", {}).items()):
        inside = value.values() if isinstance(value, dict) else value
        for item in inside if isinstance(value, list | tuple | dict) else (value,):
            if isinstance(item, Tensor):
                yield name, item
