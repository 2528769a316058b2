"""One entry of `functions:`: what relates its sizes, its inputs and its options to each other."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gradverify.model import Case
from gradverify.spec.cases import Sweep, build_cases
from gradverify.spec.inputs import InputSpec, LiteralSpec, TensorSpec, check_tensor, read_input
from gradverify.spec.pairwise import TooManyError
from gradverify.spec.schema import FunctionEntry
from gradverify.spec.sizes import (
    Expression,
    ExpressionError,
    automatic,
    is_size_name,
    parse_expression,
    undeclared,
    unknown_size,
)
from gradverify.spec.source import At, Complaint
from gradverify.spec.translate import function_complaints
from gradverify.spec.wording import Path, did_you_mean, shown

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
    infeasible: int = 0
    reference: str = ""
    hook: str = ""
    skip: str = ""
    ignore: tuple[tuple[str, str], ...] = ()


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
    elif colons and not before.endswith(".py"):
        message = f"`{shown(before)}` is not a path to a `.py` file"
    elif not _KEY.fullmatch(name):
        message = f"`{shown(name)}` is not the name of a function: write `Name`, or `Name@variant`"
    return Complaint(("functions", key), message, At.KEY) if message else None


def read_function(
    key: str, raw: object, parts: FunctionKey, known_codes: Collection[str]
) -> tuple[SpecFunction | None, list[Complaint]]:
    """Return a function, or None, with everything that is wrong inside its entry."""
    path: Path = ("functions", key)
    complaints = function_complaints(raw, path)
    if not isinstance(raw, dict):
        return None, complaints
    broken = {complaint.path[:4] for complaint in complaints}
    mapping = {
        name: raw[name] if isinstance(raw.get(name), dict) else {} for name in ("sizes", "inputs", "ignore")
    }
    good = {
        name: read_input(name, value)
        for name, value in mapping["inputs"].items()
        if (*path, "inputs", name) not in broken
    }
    faults = [
        *_ignore_complaints(mapping["ignore"], known_codes),
        *_form_complaints(raw, mapping["inputs"], tuple(part[2:] for part in broken)),
        *_size_complaints(raw, mapping, good),
        *_input_complaints(good),
        *_literal_complaints(mapping, good),
    ]
    complaints += [fault.under(path) for fault in faults]
    if complaints:
        return None, complaints
    return _with_cases(key, raw, parts, good)


def _with_cases(
    key: str, raw: Mapping[str, object], parts: FunctionKey, inputs: Mapping[str, InputSpec]
) -> tuple[SpecFunction | None, list[Complaint]]:
    path: Path = ("functions", key)
    entry = FunctionEntry.model_validate(raw)
    sizes = {name: tuple(values) for name, values in entry.sizes.items()}
    names = _used_names(raw_inputs) if isinstance(raw_inputs := raw.get("inputs"), dict) else []
    sweep = Sweep(sizes, automatic(undeclared(names, sizes)), tuple(inputs.values()), entry.arguments)
    if not inputs and not entry.arguments:
        sweep = Sweep({}, {}, ())
    try:
        built = build_cases(sweep)
    except TooManyError as error:
        return None, [Complaint((*path, "sizes"), str(error), At.KEY)]
    if built.complaints:
        return None, [complaint.under((*path, "inputs")) for complaint in built.complaints]
    planned = bool(inputs or entry.arguments)
    function = SpecFunction(
        key=key,
        module=parts.module,
        name=parts.name,
        attribute=parts.attribute,
        inputs=tuple(inputs),
        cases=built.cases if planned else (),
        infeasible=built.infeasible,
        reference=entry.reference if isinstance(entry.reference, str) else "",
        hook=entry.arguments,
        skip=entry.skip,
        ignore=tuple(entry.ignore.items()),
    )
    return function, []


def _ignore_complaints(ignore: Mapping[str, object], known_codes: Collection[str]) -> Iterator[Complaint]:
    for prefix in ignore:
        path: Path = ("ignore", prefix)
        if not re.fullmatch(r"GV\d{0,3}", prefix, re.ASCII):
            message = f"`{shown(prefix)}` is not a code: GV101, or a prefix such as GV1"
            yield Complaint(path, message, At.KEY)
        elif not any(code.startswith(prefix) for code in known_codes):
            yield Complaint(
                path, f"no code begins with `{prefix}`{_nearest_code(prefix, known_codes)}", At.KEY
            )


def _nearest_code(prefix: str, known_codes: Collection[str]) -> str:
    # Digits count from the left: GV110 is nearer to GV109 than to GV210.
    def distance(code: str) -> tuple[int, int, str]:
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(code, prefix, strict=False))
        common = len(list(same))
        return -common, abs(int(code[2:] or 0) - int(prefix[2:].ljust(3, "0"))), code

    numbered = [code for code in known_codes if re.fullmatch(r"GV\d+", code, re.ASCII)]
    return f"; did you mean `{min(numbered, key=distance)}`?" if numbered else ""


def _form_complaints(
    raw: Mapping[str, object], inputs: Mapping[str, object], broken: tuple[Path, ...]
) -> Iterator[Complaint]:
    """Yield what is missing from an entry, or stands in it twice."""
    if "arguments" in raw and "inputs" in raw:
        message = "`inputs` beside `arguments` is not supported yet: the hook builds every argument"
        yield Complaint(("inputs",), message, At.KEY)
    elif not {"skip", "arguments", "inputs"} & raw.keys():
        # `{input: …}` is one mistake, and already told.
        if not any(did_you_mean(str(part[0]), ["inputs", "arguments", "skip"]) for part in broken if part):
            yield Complaint((), "an entry needs `inputs` (or `arguments`, or `skip` with a reason)", At.KEY)
    elif not inputs and isinstance(raw.get("inputs"), dict) and "skip" not in raw:
        yield Complaint(("inputs",), "`inputs` is empty: name at least one input", At.KEY)


def _size_complaints(
    raw: Mapping[str, object], mapping: Mapping[str, Mapping[str, object]], good: Mapping[str, InputSpec]
) -> Iterator[Complaint]:
    sizes, inputs = mapping["sizes"], mapping["inputs"]
    for name in sizes:
        if not is_size_name(name):
            yield Complaint(
                ("sizes", name), f"`{shown(name)}` cannot be the name of a size: use an identifier", At.KEY
            )
    if isinstance(raw.get("sizes"), dict):
        for path, expression in _expressions(inputs):
            for name in undeclared(expression.names, sizes):
                yield Complaint(("inputs", *path), unknown_size(name, list(sizes)))
    # While an input cannot be read nobody knows which sizes it uses; hooks get them all.
    if len(good) < len(inputs) or "arguments" in raw or "inputs" not in raw:
        return
    used = _used_names(inputs)
    for name in sizes:
        if name not in used and is_size_name(name):
            meant = did_you_mean(name, undeclared(used, sizes))
            yield Complaint(("sizes", name), f"size `{name}` is used by no input{meant}", At.KEY)


def _input_complaints(good: Mapping[str, InputSpec]) -> Iterator[Complaint]:
    for name, item in good.items():
        if not is_size_name(name):
            message = f"`{shown(name)}` is not the name of a parameter"
            yield Complaint(("inputs", name), message, At.KEY)
        if isinstance(item, TensorSpec):
            yield from (fault.under(("inputs", name)) for fault in check_tensor(item))


def _literal_complaints(
    mapping: Mapping[str, Mapping[str, object]], good: Mapping[str, InputSpec]
) -> Iterator[Complaint]:
    """Yield strings that were meant as sizes, and swept inputs that share a name with a size."""
    used = {*_used_names(mapping["inputs"]), *mapping["sizes"]}
    for name, item in good.items():
        raw = mapping["inputs"][name]
        if isinstance(raw, str) and raw in used:
            message = (
                f'`{raw}` is a size: the string itself is `{{value: "{raw}"}}`; '
                f"passing a size as an integer, `{{size: {raw}}}`, is not supported yet"
            )
            yield Complaint(("inputs", name), message)
        swept = item.swept if isinstance(item, LiteralSpec) else item.entry.optional
        if swept and name in mapping["sizes"]:
            message = (
                f"`{name}` is a size and a swept input: case ids could not tell them apart; rename the size"
            )
            yield Complaint(("sizes", name), message, At.KEY)


def _expressions(inputs: Mapping[str, object]) -> Iterator[tuple[Path, Expression]]:
    """Yield the size expressions of all inputs as they appear in the text, with their paths.

    They are taken from the raw entries, so that a mistake in one place of an input does not hide
    those in another.
    """
    for name, raw in inputs.items():
        places = raw.items() if isinstance(raw, dict) else [("shape", raw)]
        for key, values in places:
            if key not in {"shape", "range"} or not isinstance(values, list):
                continue
            for index, text in enumerate(values):
                path: Path = (name, index) if isinstance(raw, list) else (name, key, index)
                with contextlib.suppress(ExpressionError):
                    if isinstance(text, str):
                        yield path, parse_expression(text)


def _used_names(inputs: Mapping[str, object]) -> list[str]:
    return list(dict.fromkeys(name for _, expression in _expressions(inputs) for name in expression.names))
