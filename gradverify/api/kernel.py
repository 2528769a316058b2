"""`assert_kernel`: a low-precision kernel in a test, against a composite in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.api.call import as_tuple
from gradverify.api.gradient_error import passed
from gradverify.api.states import states_kept
from gradverify.api.verify import device_of, live_of, report_of
from gradverify.errors import UsageError
from gradverify.model import Case, Settings, TargetReport
from gradverify.verifier import guard
from gradverify.verifier.inputs.native_values import NATIVE
from gradverify.verifier.verify.verification import Live

MOST_TAILS = 4
"""So many lengths are cut by one: a kernel has a block along few dimensions."""

SECOND_ORDER = "GV2"
"""Prefix of the codes of the second derivative, which hardly any kernel has."""

Given = Mapping[str, Any] | Sequence[Any]


def assert_kernel(
    fn: Callable[..., Any] | type[torch.autograd.Function],
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    composite: Callable[..., Any],
    *,
    dtypes: Sequence[torch.dtype | str] = (torch.float32,),
    ignore: Sequence[str] = (),
    name: str = "",
) -> TargetReport:
    """Hold a kernel's outputs and all its gradients against a composite that runs in float64.

    `fn`, `inputs` and `name` are those of `verify`; `composite` takes the same arguments and is made of plain
    torch operations. In each of `dtypes` (float32, bfloat16, float16) the values are rounded first, so only
    what the kernel adds counts, and how much rounding may add is measured: there is no tolerance to choose.
    Layouts of inputs and grad_output, requires_grad subsets, repeated calls, writes and unwritten memory
    follow, then every length of the inputs less one, where the composite and the kernel take that. Of the
    second derivative nothing is asked. `ignore` are codes that are not to count, `GV403` for a kernel that
    overwrites what it saved.

    Returns the report of a pass. Raises `GradientError` with the text report where something is wrong, or
    could not be judged; `UsageError` for what cannot be called, and for other dtypes.
    """
    __tracebackhide__ = True  # the failure of a test is the report
    for what, function in (("fn", fn), ("composite", composite)):
        if not callable(function):
            raise UsageError(f"assert_kernel: {what} is to be a callable, not {type(function).__name__}")
    asked = tuple(str(d).removeprefix("torch.") for d in dtypes)
    unknown = [d for d in asked if d not in NATIVE] if asked else ["none"]
    if unknown:
        raise UsageError(f"assert_kernel: dtypes are of {', '.join(NATIVE)}, not {unknown[0]}")
    given = _in_float64(inputs if isinstance(inputs, Mapping) else as_tuple(inputs))
    settings = Settings(
        device=device_of(_values(given), "assert_kernel"), dtypes=asked, ignore=(SECOND_ORDER, *ignore)
    )
    tails = {f"{n} cut to {n - 1}": cut for n, cut in _tails(given) if _runs(composite, cut)}
    live = live_of(fn, given, composite)
    hooks = {called: live_of(fn, cut, composite).named["inputs"] for called, cut in tails.items()}
    live = Live(live.value, {**live.named, **hooks}, native=asked[0])
    cases = tuple(Case(called, settings.seed, hook=called) for called in tails)
    with states_kept(), guard.LeavingTheCallers():
        report = report_of(live, name, settings, cases)
    return passed(report)


def _values(given: Given) -> list[Any]:
    return list(given.values() if isinstance(given, Mapping) else given)


def _like(given: Given, values: Sequence[Any]) -> Given:
    return dict(zip(given, values, strict=True)) if isinstance(given, Mapping) else list(values)


def _in_float64(given: Given) -> Given:
    """The same values with room for the digits that rounding to a dtype takes."""
    return _like(given, [_widened(v) for v in _values(given)])


def _widened(value: Any) -> Any:  # noqa: ANN401 - any argument
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def _tails(given: Given) -> Iterator[tuple[int, Given]]:
    """Each length of a floating input with all dimensions of that length one shorter, the longest first."""
    floating = [v for v in _values(given) if isinstance(v, Tensor) and v.is_floating_point()]
    lengths = sorted({n for v in floating for n in v.shape if n > 1}, reverse=True)
    for length in lengths[:MOST_TAILS]:
        yield length, _like(given, [_cut(v, length) for v in _values(given)])


def _cut(value: Any, length: int) -> Any:  # noqa: ANN401 - any argument
    if not isinstance(value, Tensor):
        return value
    shorter = value.detach()[tuple(slice(n - 1 if n == length else n) for n in value.shape)]
    return shorter.clone().requires_grad_(value.requires_grad)


def _runs(composite: Callable[..., Any], given: Given) -> bool:
    """Whether the composite takes such inputs: labels of a class that was cut off, it does not."""
    positional, named = ((), given) if isinstance(given, Mapping) else (given, {})
    return isinstance(guard.call(lambda: composite(*positional, **named)), guard.Returned)
