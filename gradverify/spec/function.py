"""One entry of `functions:`, read, checked and turned into cases."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from gradverify.model import Case, Companion, ExpectedFailure, Nested
from gradverify.spec.cases import build_cases
from gradverify.spec.codes import check_ignore, check_xfail_codes
from gradverify.spec.expressions import used_names
from gradverify.spec.gate import Gate
from gradverify.spec.inputs import read_annotation, read_input
from gradverify.spec.pairwise import TooManyError
from gradverify.spec.relations import (
    RawFunction,
    check_each_input,
    check_forms,
    check_literals,
    check_names,
    check_rows,
    check_sizes,
    check_xfail_input,
)
from gradverify.spec.schema_file import (
    CallEntry,
    CommonEntry,
    FunctionEntry,
    HookedEntry,
    SurrogateReason,
    XfailEntry,
)
from gradverify.spec.selecting import matches
from gradverify.spec.sizes import automatic, undeclared
from gradverify.spec.source import At, Complaint
from gradverify.spec.spares import spare_cases
from gradverify.spec.sweep import Rows, Sweep, factors_of
from gradverify.spec.translate import function_complaints
from gradverify.spec.wording import Path, shown

_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_KEY = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*(?:@[\w.-]+)?")


@dataclass(frozen=True)
class SpecFunction:
    """One function of a spec, with its cases; their seeds are given when they are planned."""

    key: str
    """As the file writes it."""
    module: str
    """As the file writes it: its `module:`, or what stands before `::`."""
    name: str
    """The name of the target: the key without `path.py::`."""
    attribute: str
    """Where the module has it: `target:`, or the name before `@`."""
    inputs: tuple[str, ...] = ()
    """Names in spec order."""
    cases: tuple[Case, ...] = ()
    spares: tuple[Case, ...] = ()
    """Cases at other sizes, run only to find out why another one fails."""
    sweep: Sweep | None = None
    """What the cases follow from; None where nothing is planned."""
    infeasible: int = 0
    reference: str = ""
    hook: str = ""
    skip: str = ""
    ignore: tuple[tuple[str, str], ...] = ()
    reference_arguments: tuple[str, ...] = ()
    surrogate: Companion | None = None
    expected_failures: tuple[ExpectedFailure, ...] = ()
    """Without their lines, which are given when they are planned."""
    rtol: float | None = None
    """Its own tolerance, None for the default of the file."""
    atol: float | None = None
    outputs: tuple[int, ...] | None = None
    default_dtype: str = ""
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    """Its own, empty for those of the file."""
    internals: str = ""
    init: tuple[tuple[str, Nested], ...] | None = None
    """At the sizes of the base case."""
    notes: str = ""


@dataclass(frozen=True)
class FunctionKey:
    """A key of `functions:` taken apart."""

    module: str
    name: str
    attribute: str


def split_key(key: str, raw: object, module: str) -> FunctionKey:
    """Take a key apart: `Linear@nobias`, or `path.py::Linear` where the file names no module."""
    before, colons, after = key.rpartition("::")
    name = after if colons else key
    target = raw.get("target") if isinstance(raw, dict) else None
    attribute = target if isinstance(target, str) and target else name.partition("@")[0]
    return FunctionKey(before or module, name, attribute)


def key_complaint(key: str, module: str) -> Complaint | None:
    """Return what is wrong with a key by itself."""
    before, colons, name = key.rpartition("::")
    message = ""
    if colons and module:
        message = f"`{shown(key)}` names a module, and `module:` does already: write `{shown(name)}`"
    elif not colons and not module:
        message = f"`{shown(key)}` names no module: add `module:` above, or write `path.py::{shown(key)}`"
    elif colons and not before.endswith(".py") and not _DOTTED.fullmatch(before):
        message = f"`{shown(before)}` is neither a path to a `.py` file nor a dotted module name"
    elif not _KEY.fullmatch(name):
        message = f"`{shown(name)}` is not the name of a function: write `Name`, or `Name@variant`"
    return Complaint(("functions", key), message, At.KEY) if message else None


def read_function(
    key: str, raw: object, parts: FunctionKey, known_codes: Collection[str], gate: Gate
) -> tuple[SpecFunction | None, list[Complaint]]:
    """Return a function, or None, with everything that is wrong inside its entry."""
    path: Path = ("functions", key)
    complaints = function_complaints(raw, path, gate)
    if not isinstance(raw, dict):
        return None, complaints
    broken = [complaint.path[2:] for complaint in complaints]
    function = _raw_function(raw, broken)
    complaints += [fault.under(path) for fault in _check(function, broken, known_codes)]
    if complaints:
        return None, complaints
    made, faults = _with_cases(key, parts, function, known_codes)
    return made, [fault.under(path) for fault in faults]


def _raw_function(raw: Mapping[str, object], broken: list[Path]) -> RawFunction:
    sizes, inputs = (_mapping(raw, name) for name in ("sizes", "inputs"))
    bad = {part[:2] for part in broken}
    read = read_annotation if "arguments" in raw else read_input
    good = {
        name: read(name, value)
        for name, value in inputs.items()
        if ("inputs", name) not in bad and ("inputs",) not in bad
    }
    return RawFunction(raw, sizes, inputs, good)


def _mapping(raw: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def _check(function: RawFunction, broken: list[Path], known_codes: Collection[str]) -> Iterator[Complaint]:
    yield from check_ignore(_mapping(function.raw, "ignore"), known_codes)
    yield from check_forms(function, broken)
    yield from check_sizes(function)
    yield from check_each_input(function)
    yield from check_literals(function)
    yield from check_names(function, {str(part[0]) for part in broken if part})


def _with_cases(
    key: str, parts: FunctionKey, function: RawFunction, known_codes: Collection[str]
) -> tuple[SpecFunction | None, list[Complaint]]:
    model: type[FunctionEntry | HookedEntry] = HookedEntry if function.hooked else FunctionEntry
    entry = model.model_validate(function.raw)
    planned = bool(function.good or function.hooked)
    sweep = _sweep(entry, function) if planned else Sweep({}, {}, ())
    if isinstance(sweep.rows, tuple):
        faults = list(check_rows(sweep.rows, factors_of(sweep)))
        if faults:
            return None, faults
    try:
        built = build_cases(sweep)
    except TooManyError as error:
        at: Path = ("cases",) if sweep.rows == "product" else ("sizes",)
        return None, [Complaint(at, str(error), At.KEY)]
    cases = built.cases if planned else ()
    faults = [*built.complaints, *_xfail_faults(entry, function, cases, known_codes)]
    if faults:
        return None, faults
    made = _made(key, parts, entry, cases, built.infeasible)
    if not planned:
        return made, []
    return replace(made, spares=spare_cases(sweep, cases), sweep=sweep), []


def _sweep(entry: CommonEntry, function: RawFunction) -> Sweep:
    sizes = {name: tuple(values) for name, values in entry.sizes.items()}
    named = list(entry.init.items()) if isinstance(entry.init, dict) else None
    if isinstance(entry.init, list):
        named = [(str(position), value) for position, value in enumerate(entry.init)]
    return Sweep(
        sizes,
        automatic(undeclared(used_names(function.inputs), sizes)),
        tuple(function.good.values()),
        entry.arguments if isinstance(entry, HookedEntry) else "",
        tuple(entry.where),
        _rows(entry),
        None if named is None else tuple(named),
    )


def _rows(entry: CommonEntry) -> Rows:
    if isinstance(entry.cases, list):
        return tuple(entry.cases)
    return "product" if entry.cases == "product" else "pairwise"


def _made(
    key: str, parts: FunctionKey, entry: CommonEntry, cases: tuple[Case, ...], infeasible: int
) -> SpecFunction:
    call = entry.reference if isinstance(entry.reference, CallEntry) else None
    return SpecFunction(
        key=key,
        module=parts.module,
        name=parts.name,
        attribute=parts.attribute,
        inputs=tuple(entry.inputs) if isinstance(entry, FunctionEntry | HookedEntry) else (),
        cases=cases,
        infeasible=infeasible,
        reference=call.call if call else str(entry.reference),
        hook=entry.arguments if isinstance(entry, HookedEntry) else "",
        skip=entry.skip,
        ignore=tuple(entry.ignore.items()),
        reference_arguments=tuple(call.arguments) if call else (),
        surrogate=_surrogate(entry),
        expected_failures=tuple(_expected(one) for _, one in _xfails(entry)),
        rtol=entry.tolerance.rtol,
        atol=entry.tolerance.atol,
        outputs=tuple(entry.outputs) or None,
        default_dtype=entry.default_dtype,
        devices=tuple(entry.devices),
        dtypes=tuple(entry.dtypes),
        internals=entry.internals,
        init=cases[0].init if cases else None,
        notes=entry.notes,
    )


def _surrogate(entry: CommonEntry) -> Companion | None:
    match entry.surrogate:
        case None:
            return None
        case str() as path:
            return Companion(path)
        case SurrogateReason(reason=reason):
            return Companion(reason=reason)
        case call:
            return Companion(call.call, inputs=tuple(call.inputs))


def _xfails(entry: CommonEntry) -> list[tuple[Path, XfailEntry]]:
    if isinstance(entry.xfail, XfailEntry):
        return [(("xfail",), entry.xfail)]
    return [(("xfail", index), one) for index, one in enumerate(entry.xfail or [])]


def _expected(entry: XfailEntry) -> ExpectedFailure:
    return ExpectedFailure(tuple(entry.codes), entry.reason, entry.until, entry.input, tuple(entry.cases))


def _xfail_faults(
    entry: CommonEntry, function: RawFunction, cases: tuple[Case, ...], known_codes: Collection[str]
) -> Iterator[Complaint]:
    for path, one in _xfails(entry):
        for fault in check_xfail_codes(one, known_codes, entry.ignore):
            yield fault.under(path)
        wrong_input = check_xfail_input(function, one.input)
        if wrong_input:
            yield Complaint((*path, "input"), wrong_input)
        for index, text in enumerate(one.cases):
            if cases and not any(matches(case.id, text) for case in cases):
                known = ", ".join(case.id for case in cases[:3]) + (", …" if len(cases) > 3 else "")
                message = f"no case is called `{shown(text)}`; cases: {known}"
                yield Complaint((*path, "cases", index), message)
