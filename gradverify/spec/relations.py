"""What relates the keys of one function to each other: sizes, inputs, names of inputs, cases, ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gradverify.cases.inputs import (
    GIVEN,
    STACKED,
    ConcatSpec,
    InputSpec,
    ListSpec,
    TensorSpec,
    ValueSpec,
    expressions,
    leaves,
    levels,
    parts_of,
)
from gradverify.cases.messages import Path, described, did_you_mean, shown
from gradverify.cases.sizes import (
    MAX_SIZE,
    RANK,
    Expression,
    ExpressionError,
    is_size_name,
    parse_condition,
    size_expression,
)
from gradverify.cases.sweep import Factor, option_text
from gradverify.model import WORLD, Scalar
from gradverify.spec.fields import MAX_COUNT, SHARD
from gradverify.spec.inputs import written_expressions
from gradverify.spec.source import Complaint, at_key
from gradverify.spec.tensors import check_tensor


@dataclass(frozen=True)
class RawFunction:
    """The entry of a function as the file has it, with its inputs as far as they can be read."""

    raw: Mapping[str, object]
    sizes: Mapping[str, object]
    inputs: Mapping[str, object]
    good: Mapping[str, InputSpec]
    known_codes: Collection[str]

    @property
    def hooked(self) -> bool:
        """Whether a hook builds the arguments."""
        return "arguments" in self.raw

    @property
    def is_read(self) -> bool:
        """Whether every input could be read: otherwise it is not known which sizes are used."""
        return len(self.good) == len(self.inputs)

    @property
    def reserved(self) -> tuple[str, ...]:
        """Names in size expressions that are not declared."""
        return (WORLD, RANK) if "world_size" in self.raw else ()

    def keys_of(self, name: str, path: Path = ()) -> Collection[str]:
        """The keys that the entry of an input has at a path; a bare list is the shape of a tensor."""
        raw: object = self.inputs[name]
        for part in path:
            raw = raw[part]  # type: ignore[index]
        return raw.keys() if isinstance(raw, dict) else ("shape",)

    @property
    def used_names(self) -> list[str]:
        """The sizes that inputs use, each once, in order of appearance."""
        return list(dict.fromkeys(name for _, one in self.expressions for name in one.names))

    @cached_property
    def expressions(self) -> list[tuple[Path, Expression]]:
        """The size expressions of all inputs with their paths, in the order of the file."""
        return [
            (("inputs", name, *path), one)
            for name, item in self.good.items()
            for path, one in written_expressions(item, self.inputs[name])
        ]


def check_function(function: RawFunction, broken: Collection[Path]) -> Iterator[Complaint]:
    """Yield what is wrong with an entry beside what is `broken` by itself."""
    yield from check_forms(function, broken)
    yield from check_sizes(function)
    yield from check_each_input(function)
    yield from check_literals(function)
    yield from check_names(function, {str(part[0]) for part in broken if part})
    yield from check_ranks(function)


def check_forms(function: RawFunction, broken: Collection[Path]) -> Iterator[Complaint]:
    """Yield what is missing from an entry."""
    raw = function.raw
    if not {"skip", "arguments", "inputs"} & raw.keys():
        # `{input: …}` is one mistake, and already reported.
        if not any(did_you_mean(str(part[0]), ["inputs", "arguments", "skip"]) for part in broken if part):
            yield at_key((), "an entry needs `inputs` (or `arguments`, or `skip` with a reason)")
    elif not function.inputs and isinstance(raw.get("inputs"), dict) and "skip" not in raw:
        yield at_key(("inputs",), "`inputs` is empty: name at least one input")


def check_sizes(function: RawFunction) -> Iterator[Complaint]:
    """Yield names of sizes that are none, are not declared, or are never used."""
    sizes = function.sizes
    for name in sizes:
        if not is_size_name(name):
            message = f"`{shown(name)}` cannot be the name of a size: use an identifier"
            yield at_key(("sizes", name), message)
    yield from _undeclared(function)
    if not function.is_read or function.hooked or "inputs" not in function.raw:  # hooks get them all
        return
    by_inputs = function.used_names
    used = {*by_inputs, *_init_names(function)}
    for name in sizes:
        if name not in used and is_size_name(name):
            meant = did_you_mean(name, {*by_inputs} - sizes.keys())
            yield at_key(("sizes", name), f"size `{name}` is used by no input{meant}")


def _init_names(function: RawFunction) -> set[str]:
    """Return which of the sizes an `init:` uses: the function's own, and those of its objects."""
    objects = [entry.get("init") for entry in function.inputs.values() if isinstance(entry, dict)]
    held = leaves([function.raw.get("init"), objects])
    found = (size_expression(value, function.sizes) for _, value in held)
    return {name for one in found if one is not None for name in one.names}


def _undeclared(function: RawFunction) -> Iterator[Complaint]:
    """Yield the names that a `sizes:` block lacks, and those that without one no input uses."""
    declared = isinstance(function.raw.get("sizes"), dict)
    known = [*function.sizes, *function.reserved, *([] if declared else function.used_names)]
    named = [(path, name) for path, one in function.expressions for name in one.names]
    if declared or function.is_read:
        named += _where_names(function.raw)
    for path, name in named:
        if name not in known:
            meant = did_you_mean(name, known) or (f"; declared: {', '.join(known)}" if known else "")
            lacking = f"is not in `sizes`{meant}" if declared else "is no size that an input uses"
            yield Complaint(path, f"`{shown(name)}` {lacking}")


def _where_names(raw: Mapping[str, object]) -> Iterator[tuple[Path, str]]:
    """Yield the sizes that `where` names, with the place of their condition."""
    conditions = raw.get("where")
    for index, text in enumerate(conditions if isinstance(conditions, list) else []):
        with contextlib.suppress(ExpressionError):
            for name in parse_condition(text).names if isinstance(text, str) else ():
                yield ("where", index), name


def check_each_input(function: RawFunction) -> Iterator[Complaint]:
    """Yield what is wrong with inputs one by one."""
    for name, item in function.good.items():
        path: Path = ("inputs", name)
        if not is_size_name(name):
            yield at_key(path, f"`{shown(name)}` is not the name of a parameter")
        form, whole = _OF_THE_WHOLE.get(type(item), ("", ()))
        for inner, spec in parts_of(item):
            given = function.keys_of(name, inner)
            for fault in check_tensor(spec, given):
                yield fault.under((*path, *inner))
            for key in whole:
                if key in given:
                    message = f"`{key}` is about the whole: write it beside `{form}`"
                    yield at_key((*path, *inner, key), message)


_OF_THE_WHOLE: Mapping[type, tuple[str, tuple[str, ...]]] = {
    ListSpec: ("list", ("optional",)),
    ConcatSpec: ("concat", ("optional", "requires_grad", "layout", "mutated")),
}


def check_literals(function: RawFunction) -> Iterator[Complaint]:
    """Yield strings that were meant as sizes, and swept inputs that share a name with a size."""
    used = {*function.used_names, *function.sizes}
    for name, item in function.good.items():
        raw = function.inputs[name]
        if isinstance(raw, str) and raw in used:
            message = (
                f"`{raw}` is a size: to pass it as an integer write `{{size: {raw}}}`, "
                f'for the string itself `{{value: "{raw}"}}`'
            )
            yield Complaint(("inputs", name), message)
        if levels(item) and name in function.sizes:
            message = f"`{name}` is a size and a swept input: case ids would be ambiguous; rename the size"
            yield at_key(("sizes", name), message)


def check_names(function: RawFunction, broken: Collection[str]) -> Iterator[Complaint]:
    """Yield names of inputs that are none: in a reference's call and in a surrogate's."""
    if function.hooked or not function.is_read:
        return
    for key, inner in (("reference", "arguments"), ("surrogate", "inputs")):
        entry = function.raw.get(key)
        named = entry.get(inner) if isinstance(entry, dict) and key not in broken else None
        for index, name in enumerate(named if isinstance(named, list) else []):
            path: Path = (key, inner, index)
            item = function.good.get(name)
            if item is None and not _of_module(function, name):
                yield Complaint(path, unknown_input(name, function.inputs))
            elif item and inner == "inputs" and not isinstance(item, TensorSpec | ListSpec | ConcatSpec):
                yield Complaint(path, f"`{name}` is no tensor, and has no gradient to replace")


def check_xfail_input(function: RawFunction, name: str) -> str:
    """Return what is wrong with the `input` of an expected failure, or an empty string."""
    base = name.partition("[")[0]
    if function.hooked or not name or base in function.inputs or _of_module(function, name):
        return ""
    return unknown_input(name, function.inputs)


def _of_module(function: RawFunction, name: str) -> bool:
    # A module's parameters appear as `self.weight`; which there are only the live module tells.
    return "init" in function.raw and name.startswith("self.")


def unknown_input(name: str, inputs: Collection[str]) -> str:
    """Return the sentence for a name that no input has."""
    known = did_you_mean(name, inputs) or (f"; inputs: {', '.join(inputs)}" if inputs else "")
    return f"`{shown(name)}` is no input{known}"


def check_rows(rows: Sequence[Mapping[str, Scalar]], factors: Sequence[Factor]) -> Iterator[Complaint]:
    """Yield what is wrong with the cases that a spec lists, and listed values that none of them takes."""
    by_name = {factor.name: factor for factor in factors}
    for index, row in enumerate(rows):
        for name, value in row.items():
            path: Path = ("cases", index, name)
            factor = by_name.get(name)
            if factor is None:
                known = did_you_mean(name, by_name) or f"; known: {', '.join(by_name) or 'none'}"
                yield at_key(path, f"`{shown(name)}` is no declared size and no option{known}")
            elif fault := _wrong_level(factor, value):
                yield Complaint(path, fault)
    for factor in factors:
        taken = [repr(row.get(factor.name, factor.levels[0])) for row in rows]
        missing = [level for level in factor.levels if repr(level) not in taken]
        if missing:
            text = "given" if missing[0] == GIVEN and factor.is_optional else option_text(missing[0])
            where: Path = ("sizes", factor.name) if factor.is_size else ("inputs", factor.name)
            message = f"no case of `cases` takes {factor.name}={text}: list one, or remove the value"
            yield at_key(where, message)


def _wrong_level(factor: Factor, value: Scalar) -> str:
    low, high = (0, MAX_SIZE) if factor.is_size else (1, MAX_COUNT)
    fits = type(value) is int and low <= value <= high
    if factor.is_size:
        return "" if fits else f"a size is an integer between 0 and {MAX_SIZE}, not {described(value)}"
    if (factor.is_count and fits) or repr(value) in map(repr, factor.levels):
        return ""
    known = ", ".join("null" if level is None else option_text(level) for level in factor.levels)
    return f"`{factor.name}` is swept over {known}, not {described(value).replace('empty', 'null')}"


_BUILT_WHOLE = ("structure", "layout", "make", "constant_at")
"""Keys of a tensor that are about its last dimensions, or build it whole."""


def check_ranks(function: RawFunction) -> Iterator[Complaint]:
    """Yield what is wrong with the keys about ranks."""
    if "world_size" in function.raw:
        yield from _check_across(function)
        return
    for key in ("output_placement", "second_order"):
        if key in function.raw:
            yield at_key((key,), f"`{key}` says nothing without `world_size`")
    for name, item in function.good.items():
        if "process_group" in function.keys_of(name):
            yield at_key(("inputs", name), "`process_group` needs a `world_size`")
        for path, _ in parts_of(item):
            for key in ("placement", "gradient"):
                if key in function.keys_of(name, path):
                    where: Path = ("inputs", name, *path, key)
                    yield at_key(where, f"`{key}` says nothing without `world_size`")


def _check_across(function: RawFunction) -> Iterator[Complaint]:
    for name in function.reserved:
        if name in function.sizes:
            message = f"`{name}` is known where there is a `world_size`: call this size otherwise"
            yield at_key(("sizes", name), message)
    for key in ("arguments", "init"):
        if key in function.raw:
            message = f"`{key}` conflicts with `world_size`: write a function of tensors as the target"
            yield at_key((key,), message)
    for name, item in function.good.items():
        if isinstance(item, ConcatSpec):
            yield at_key(("inputs", name, "concat"), "`concat` conflicts with `world_size`")
        for path, message in _wrong_across(item):
            yield Complaint(("inputs", name, *path), message)


def _wrong_across(item: InputSpec) -> Iterator[tuple[Path, str]]:
    """Yield what cannot be said of an input across ranks, with its path inside the entry."""
    local = [(*path, "shape") for path, spec in parts_of(item) if spec.placement == "local"]
    for path, expression in expressions(item):
        of_rank = isinstance(item, ValueSpec) or any(path[: len(one)] == one for one in local)
        if RANK in expression.names and not of_rank:
            yield path, "`rank` is allowed in the shape of a `local` tensor, in `size` and in `tuple`"
    for path, spec in parts_of(item):
        yield from (((*path, key), message) for key, message in _wrong_placement(spec))


def _wrong_placement(spec: TensorSpec) -> Iterator[tuple[str, str]]:
    if spec.gradient and spec.placement != "replicate":
        yield "gradient", "`gradient` is allowed with `placement: replicate` only"
    for key in ("placement", "gradient"):
        shard, rank = SHARD.fullmatch(getattr(spec, key)), len(spec.shape)
        if shard is not None and int(shard[1]) >= rank:
            yield key, f"a tensor of {rank} dimensions has no dimension {shard[1]} to split"
    for key in _BUILT_WHOLE if spec.placement in STACKED else ():
        if getattr(spec, key):
            yield key, f"`{key}` conflicts with a tensor of each rank: use replicate or shard"
