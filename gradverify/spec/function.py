"""One entry of `functions:`, read, checked and turned into cases.

Codes that a spec names: in `ignore` by prefix, in `xfail` in full.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gradverify.cases.messages import Path, shown
from gradverify.cases.pairwise import TooManyError
from gradverify.cases.selecting import matches
from gradverify.cases.sizes import automatic
from gradverify.cases.sweep import PAIRWISE, PRODUCT, Cases, Sweep, build_cases, factors_of
from gradverify.model import WORLD, Case, Companion, ExpectedFailure, InputSource, Ranks, Scalar, TargetPlan
from gradverify.spec.fields import DOTTED
from gradverify.spec.inputs import read_input
from gradverify.spec.mistakes import read_entry
from gradverify.spec.relations import (
    RawFunction,
    check_function,
    check_rows,
    check_xfail_input,
)
from gradverify.spec.schema import (
    INPUT,
    AnnotationEntry,
    CallEntry,
    CommonEntry,
    HookedEntry,
    SurrogateReason,
    XfailEntry,
)
from gradverify.spec.source import Complaint, at_key
from gradverify.spec.tensors import contradictions


def check_ignore(function: RawFunction) -> Iterator[Complaint]:
    """Yield what is wrong with the prefixes of `ignore`."""
    for prefix in _mapping(function.raw, "ignore"):
        path: Path = ("ignore", prefix)
        if not re.fullmatch(r"GV\d{0,3}", prefix, re.ASCII):
            message = f"`{shown(prefix)}` is not a code: GV101, or a prefix such as GV1"
            yield at_key(path, message)
        elif not any(code.startswith(prefix) for code in function.known_codes):
            message = f"no code begins with `{prefix}`{_nearest_code(prefix, function.known_codes)}"
            yield at_key(path, message)


def check_xfail_codes(entry: XfailEntry, function: RawFunction) -> Iterator[Complaint]:
    """Yield what is wrong with the codes of one expected failure, by paths inside it."""
    known_codes, ignored = function.known_codes, _mapping(function.raw, "ignore")
    for index, code in enumerate(entry.codes):
        path: Path = ("codes", index)
        prefix = next((prefix for prefix in ignored if code.startswith(prefix)), None)
        if not re.fullmatch(r"GV\d{3}", code, re.ASCII):
            whole = ": each must occur, so a prefix says too little" if code.startswith("GV") else ""
            yield Complaint(path, f"`{shown(code)}` is not a whole code such as GV201{whole}")
        elif code not in known_codes:
            yield Complaint(path, f"there is no code `{code}`{_nearest_code(code, known_codes)}")
        elif prefix is not None:
            message = f"`{code}` cannot be expected: `ignore: {{{prefix}: …}}` keeps it from being checked"
            yield Complaint(path, message)


def _nearest_code(prefix: str, known_codes: Collection[str]) -> str:
    # Digits count from the left: GV110 is nearer to GV109 than to GV210.
    wanted = int(prefix[2:].ljust(3, "0"))

    def distance(code: str) -> tuple[list[bool], int, str]:
        differs = [one != other for one, other in zip(code, prefix, strict=False)]
        return differs, abs(int(code[2:]) - wanted), code

    return f"; did you mean `{min(known_codes, key=distance)}`?" if known_codes else ""


_KEY = re.compile(r"[^\W\d]\w*(?:\.(?:[^\W\d]\w*|<locals>))*(?:@[\w.-]+)?")
"""`Name`, `Name@variant`, or the qualified name of what is defined in a function: `make.<locals>.Name`."""


@dataclass(frozen=True)
class SpecFunction:
    """One function of a spec, with its plan as far as the spec alone decides it."""

    key: str
    """As the file writes it."""
    module: str
    """As the file writes it: its `module:`, or what is before `::`."""
    plan: TargetPlan
    """Its cases have no seeds and its expected failures no lines yet; tolerances are those of the run."""
    inputs: tuple[str, ...]
    """Names in spec order."""
    sweep: Sweep
    """What the cases follow from; empty where nothing is planned."""
    rtol: float | None
    """Its own tolerance, None for the default of the file."""
    atol: float | None

    @property
    def name(self) -> str:
        """The name of the target: the key without `path.py::`."""
        return self.plan.name

    @property
    def attribute(self) -> str:
        """Where the module has it: `target:`, or the name before `@`."""
        return self.plan.attribute

    @property
    def cases(self) -> tuple[Case, ...]:
        """Its cases, without seeds."""
        return self.plan.cases


@dataclass(frozen=True)
class FunctionKey:
    """A key of `functions:` taken apart."""

    module: str
    name: str
    attribute: str


def split_key(key: str, raw: object, module: str) -> FunctionKey:
    """Take a key apart: `Linear@nobias`, or `path.py::Linear` where the file names no module."""
    before, _, name = key.rpartition("::")
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
    elif colons and not before.endswith(".py") and not DOTTED.fullmatch(before):
        message = f"`{shown(before)}` is neither a path to a `.py` file nor a dotted module name"
    elif not _KEY.fullmatch(name):
        message = f"`{shown(name)}` is not the name of a function: write `Name`, or `Name@variant`"
    return at_key(("functions", key), message) if message else None


def read_function(
    key: str, raw: object, parts: FunctionKey, known_codes: Collection[str]
) -> tuple[SpecFunction | None, list[Complaint]]:
    """Return a function, or None, with everything that is wrong inside its entry."""
    path: Path = ("functions", key)
    entry, complaints = read_entry(raw, path)
    if not isinstance(raw, dict):
        return None, complaints
    broken = [complaint.path[2:] for complaint in complaints]
    function = _raw_function(raw, entry, broken, known_codes)
    faults = [*check_ignore(function), *check_function(function, broken)]
    complaints += [fault.under(path) for fault in faults]
    if complaints or entry is None:
        return None, complaints
    made, faults = _with_cases(key, parts, entry, function)
    return made, [fault.under(path) for fault in faults]


def _raw_function(
    raw: Mapping[str, object], entry: CommonEntry | None, broken: list[Path], known_codes: Collection[str]
) -> RawFunction:
    """The entry with its inputs as far as they could be read; where another key is wrong, by themselves."""
    sizes, inputs = (_mapping(raw, name) for name in ("sizes", "inputs"))
    bad, across = {part[:2] for part in broken}, "world_size" in raw
    found: Mapping[str, object] = getattr(entry, "inputs", {})
    if entry is None:
        validated = AnnotationEntry.model_validate if "arguments" in raw else INPUT.validated
        good = {name for name in inputs if not {("inputs",), ("inputs", name)} & bad}
        found = {name: validated(value) for name, value in inputs.items() if name in good}
    read = {name: read_input(name, value, across=across) for name, value in found.items()}
    return RawFunction(raw, sizes, inputs, read, known_codes)


def _mapping(raw: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def _with_cases(
    key: str, parts: FunctionKey, entry: CommonEntry, function: RawFunction
) -> tuple[SpecFunction | None, list[Complaint]]:
    sweep, built = Sweep(), Cases()
    if function.good or function.hooked:
        sweep = _sweep(entry, function)
        faults = [*check_rows(entry.cases, factors_of(sweep))] if isinstance(entry.cases, list) else []
        if faults:
            return None, faults
        try:
            built = build_cases(sweep)
        except TooManyError as error:
            at = "cases" if entry.cases == PRODUCT else "sizes"
            return None, [at_key((at,), str(error))]
    faults = [Complaint(f.path, f.message, of_key=f.path == ("where",)) for f in built.faults]
    faults += _contradictions(sweep, built.cases)
    faults += _xfail_faults(entry, function, built.cases)
    if faults:
        return None, faults
    plan, tolerance = _plan(parts, entry, built), entry.tolerance
    return SpecFunction(
        key, parts.module, plan, tuple(function.inputs), sweep, tolerance.rtol, tolerance.atol
    ), []


def _sweep(entry: CommonEntry, function: RawFunction) -> Sweep:
    world = {WORLD: entry.world_size} if entry.world_size else {}
    known = {*entry.sizes, *function.reserved}
    init = entry.init
    return Sweep(
        inputs=tuple(function.good.values()),
        sizes=tuple((name, tuple(values)) for name, values in {**world, **entry.sizes}.items()),
        automatic=automatic(name for name in function.used_names if name not in known),
        hook=entry.arguments if isinstance(entry, HookedEntry) else "",
        where=tuple(entry.where),
        rows=_rows(entry),
        init=None
        if init is None
        else tuple(init.items() if isinstance(init, dict) else ((str(k), v) for k, v in enumerate(init))),
        across=bool(world),
    )


def _rows(entry: CommonEntry) -> str | tuple[tuple[tuple[str, Scalar], ...], ...]:
    if isinstance(entry.cases, list):
        return tuple(tuple(row.items()) for row in entry.cases)
    return entry.cases or PAIRWISE


def _contradictions(sweep: Sweep, cases: tuple[Case, ...]) -> list[Complaint]:
    """What is wrong with inputs at the sizes of some case, each place once: as in the first case."""
    found: dict[Path, Complaint] = {}
    for case in reversed(cases):
        made = {bound.name: bound for bound in case.inputs}
        for item in sweep.inputs:
            if item.name in made:
                for complaint in contradictions(item, made[item.name], dict(case.sizes)):
                    reported = complaint.under(("inputs", item.name))
                    found[reported.path] = reported
    return list(found.values())


def _plan(parts: FunctionKey, entry: CommonEntry, built: Cases) -> TargetPlan:
    cases, xfails = built.cases, (one for _, one in _xfails(entry))
    call = entry.reference if isinstance(entry.reference, CallEntry) else None
    return TargetPlan(
        name=parts.name,
        attribute=parts.attribute,
        source=InputSource.SPEC if cases else InputSource.NONE,
        cases=cases,
        reference=call.call if call else str(entry.reference),
        ignore=tuple(entry.ignore.items()),
        skip=entry.skip,
        reference_arguments=tuple(call.arguments) if call else (),
        surrogate=_surrogate(entry),
        expected_failures=tuple(
            ExpectedFailure(tuple(x.codes), x.reason, x.until, x.input, tuple(x.cases)) for x in xfails
        ),
        outputs=tuple(entry.outputs) or None,
        default_dtype=entry.default_dtype,
        devices=tuple(entry.devices),
        dtypes=tuple(entry.dtypes),
        internals=entry.internals,
        ranks=Ranks(tuple(entry.output_placement) or ("local",), entry.second_order)
        if entry.world_size
        else None,
        init=cases[0].init if cases else None,
        infeasible=built.infeasible,
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


def _xfail_faults(entry: CommonEntry, function: RawFunction, cases: tuple[Case, ...]) -> Iterator[Complaint]:
    for path, one in _xfails(entry):
        for fault in check_xfail_codes(one, function):
            yield fault.under(path)
        wrong_input = check_xfail_input(function, one.input)
        if wrong_input:
            yield Complaint((*path, "input"), wrong_input)
        for index, text in enumerate(one.cases):
            if cases and not any(matches(case.id, text) for case in cases):
                known = ", ".join(case.id for case in cases[:3]) + (", …" if len(cases) > 3 else "")
                message = f"no case is called `{shown(text)}`; cases: {known}"
                yield Complaint((*path, "cases", index), message)
