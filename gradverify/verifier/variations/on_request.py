"""Whether a write was asked for: at another value of an option of the call it is not there.

Options are what a call is given beside tensors: True and False, and the values that the spec lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.snapshots import Snapshot
from gradverify.verifier.variations.call import backward, called
from gradverify.verifier.variations.verified import Verified


def asked_by(base: Verified) -> str:
    """The option that asks backward to write into grad_output, and what of it does not; else empty."""
    for name, value, other, arguments in _otherwise(base.sample):
        if _leaves_grad_output(base, arguments):
            return f"`{name}={value!r}` asks for it: with {other!r} it is left alone"
    return ""


def _leaves_grad_output(base: Verified, arguments: Sequence[Argument]) -> bool:
    call = called(base.sample, arguments)
    if isinstance(call, Raised) or [o.shape for o in call.value.outputs] != [
        o.shape for o in base.grad_outputs()
    ]:
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
        others = (not value,) if type(value) is bool else tuple(v for v in listed if v != value)
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
