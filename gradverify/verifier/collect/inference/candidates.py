"""From evidence to guesses: what a parameter may be, the likeliest first."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from gradverify.model import Nested, Parameter, Scalar
from gradverify.verifier.collect.inference.call_sites import Passed
from gradverify.verifier.collect.inference.facts import Facts


class Kind(StrEnum):
    """What an argument can be."""

    FLOAT = "float tensor"
    INDEX = "integer tensor"
    BOOL = "boolean tensor"
    LITERAL = "literal"
    SIZE = "size"
    LIST = "list of tensors"
    CALLABLE = "callable"
    OBJECT = "object"
    OMITTED = "left to its default"


@dataclass(frozen=True)
class Guess:
    """One thing that a parameter may be."""

    kind: Kind
    cost: float
    choices: tuple[Nested, ...] = ()
    """Of a literal; further ones are swept."""
    found: bool = True
    """The source says so; otherwise it is invented."""
    path: str = ""
    """Of a live object."""
    structure: str = ""
    """Of an integer tensor: `offsets`, `lengths`, `permutation`."""
    made: bool = False
    """The object behind the path is called, and what it returns is passed."""
    init: tuple[Scalar, ...] = ()
    """What it is called with."""


FACTORS = (0.75, 2.5, 0.375)
"""Invented real numbers: a wrong factor shows at none of 0, 1 and 2. All are exact in 16 bits, so that no
rounding of what nobody wrote is held against backward."""

SMALL = 2.0**-10
"""An invented number that protects a division, or ends an iteration: small, and exact in 16 bits."""

_SMALL = re.compile(r"(^|_)(eps|epsilon|tol|atol|rtol|tolerance|jitter)\d*($|_)")

TUPLE = (3, 2, 4, 5, 6)
"""Invented entries of a tuple of sizes."""

DEFAULT = 0.05
"""What a default costs: it says more than a name or an annotation, and less than a gradient for it."""

NOT_THE_DEFAULT = 1.5
"""What an invented number costs beside a default: as much as an agreement of two sizes of one tensor, since
no rounds at all are taken with every shape."""

_INDEX = re.compile(
    r"(^|_)(idx|inds?|index|indexs|indices|ids?|labels?|perm|permutation|targets?|segments?|lengths?|batch|neighbors?"
    r"|edge_index|assignment|class(es)?)\d*($|_)|.*(indices|_idx|_ind|_index|_ids)$"
)
_OFFSETS = re.compile(
    r"^cu_?\w*(lens?|offsets?)(_\w+)?$|(^|_)(offsets?|indptr|row_?ptr|ptr|splits|boundaries)$"
)
_LENGTHS = re.compile(
    r"(^|_)(lengths|lens|counts|sizes|sections|splits|num_(points|nodes|atoms|tokens)|batch_sizes)$|^n_per_\w+$"
)
_AXES = re.compile(r"^(axes|dims|reduce_dims|dimensions)$")
_PERMUTATION = re.compile(r"(^|_)(perm|permutation|permute_idx|sort(ed)?_(idx|ind|index|indices|ids)|order)$")
_BOOL = re.compile(r"(^|_)(mask|masks|padding_mask|valid|keep)($|_)|.*_mask$")
_FLAG = re.compile(
    r"^(is|use|with|do|has|should|return|keep|need|enable|allow)_.*|^(training|inplace|keepdim|bias|reverse"
    r"|normali[sz]e|average|size_average|reduce|causal|symmetric|signed|narrow|verbose|inverse|transpose"
    r"|adjoint|periodic|hard|debug|deterministic|preserve_rng_state|unpack_data|train)$"
)
_INT = re.compile(
    r"^(k|n|m|dim|axis|step|steps|stride|padding|pad|groups|dilation|order|degree|bits|levels|size|length|max_iter"
    r"|iterations|maxiter|n_iter|count|depth|ndim|p|seed|chunks?|blank|blank_idx|kernel_size|output_size|mode)$"
    r"|^(n|num|max)_.*|.*_(size|dim|bits|iter|iters|num|steps|length|axis|count)$|.*(size|width)$"
)
_FLOAT = re.compile(
    r"^(eps|epsilon|alpha|beta|gamma|delta|lambda_?|lambd|lam|lambda_?val|scale|slope|temperature|temp|tau|margin"
    r"|sigma|rate|p|momentum|coeff|coef|constant|factor|weight_decay|lr|threshold|thresh|theta|grad_scale|width"
    r"|min|max|min_val|max_val|lower|upper|low|high|gradient_scaling|multiplier|strength|rho|c|a|b|t|h|dt|step_size)$"
    r"|.*_(eps|rate|scale|factor|slope|threshold|alpha|beta|lambda|coeff|weight|width|val|value)$"
)
_LIST = re.compile(r"^(inputs|tensors|xs|args|params|weights|list|arrays|features)$")
_CALLABLE = re.compile(
    r"^(f|fn|fun|func|function|kernel|callback|closure|run_function|distance|dist_fn|metric|activation)$|.*_(fn|func|function)$"
)


def guesses(parameter: Parameter, facts: Facts, passed: Passed, default: Any) -> list[Guess]:  # noqa: ANN401
    """What a parameter may be, the likeliest first. `default` is `...` where it has none."""
    found = [
        *_from_default(parameter, facts, default),
        *_from_calls(passed, facts),
        *_from_annotation(parameter.annotation),
        *_tensors(parameter, facts),
        *_beside_default(_scalars(parameter, facts), default),
    ]
    if parameter.exact:
        found = [*(g for g in found if _fits(g, parameter.annotation)), *_of_type(parameter.annotation)]
    best: dict[tuple[Kind, tuple[Nested, ...]], Guess] = {}
    for guess in found:
        key = guess.kind, (*guess.choices, guess.path, guess.structure, guess.init)
        if key not in best or guess.cost < best[key].cost:
            best[key] = guess
    return sorted(best.values(), key=lambda g: g.cost)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "number": (int, float),
    "str": (str,),
}
"""Literals that a type of an operator's schema takes; a bool is no int there."""


def _fits(guess: Guess, schema_type: str) -> bool:
    """Whether an operator takes such an argument at all."""
    if guess.kind is Kind.OMITTED:
        return True
    optional = re.fullmatch(r"Optional\[(.*)\]", schema_type)
    plain = optional[1] if optional else schema_type
    if guess.kind is not Kind.LITERAL:
        kinds = {"Tensor": {Kind.FLOAT, Kind.INDEX, Kind.BOOL}, "int": {Kind.SIZE}}
        lists = {Kind.LIST} if re.fullmatch(r"List\[(Tensor|Optional\[Tensor\])\]", plain) else set()
        return guess.kind in kinds.get(plain, lists)
    return all(
        (value is None and optional is not None)
        or (isinstance(value, tuple) and plain.startswith("List["))
        or (isinstance(value, _TYPES.get(plain, ())) and (plain == "bool") is isinstance(value, bool))
        for value in guess.choices
    )


def _of_type(schema_type: str) -> Iterator[Guess]:
    """What a schema alone leaves open: a tensor may be absent, a list holds tensors of any number."""
    if schema_type.startswith("Optional["):
        yield Guess(Kind.LITERAL, 2.0, (None,))
    if schema_type == "number":
        yield Guess(Kind.LITERAL, 0.1, (FACTORS[0],), found=False)


def _from_default(parameter: Parameter, facts: Facts, default: Any) -> Iterator[Guess]:  # noqa: ANN401
    if default is ... or parameter.variadic:
        return
    differentiable = facts.gradient is True
    if default is None:
        cost = 1.2 if differentiable else DEFAULT if facts.gradient is False else 0.4
        yield Guess(Kind.LITERAL, cost, (None,))
    elif isinstance(default, bool | int | float | str):
        yield Guess(Kind.LITERAL, DEFAULT, swept(default, parameter.name))
    elif isinstance(default, tuple) and all(isinstance(d, int | float | str) for d in default):
        yield Guess(Kind.LITERAL, DEFAULT, (default,))
    else:
        yield Guess(Kind.OMITTED, 0.3)


def _beside_default(invented: Iterator[Guess], default: Any) -> Iterator[Guess]:  # noqa: ANN401
    """Invented literals are dearer where the author wrote a value: what refuses it is mended first."""
    written = type(default) in {int, float}
    for guess in invented:
        number = guess.kind is Kind.LITERAL and type(guess.choices[0]) in {int, float} and not guess.found
        dear = written and (number or guess.kind is Kind.SIZE)
        yield replace(guess, cost=guess.cost + NOT_THE_DEFAULT) if dear else guess


def looks_real(name: str, facts: Facts) -> bool:
    """Whether a number of that name is likelier a real one than an integer."""
    return "float" in facts.kinds or bool(_FLOAT.match(name.lower().strip("_")))


def _from_calls(passed: Passed, facts: Facts) -> Iterator[Guess]:
    del facts
    for rank, value in enumerate(passed.literals):
        if value is None:
            yield Guess(Kind.LITERAL, 0.6 + 0.1 * rank, (None,))
        else:
            yield Guess(Kind.LITERAL, 0.1 + 0.1 * rank, swept(value, ""))


def swept(value: Nested, name: str) -> tuple[Nested, ...]:
    """A literal of the source, and beside a factor that would hide a mistake another one."""
    hides = isinstance(value, float) and value in {0.0, 1.0, 2.0} and not name.startswith("eps")
    return (value, FACTORS[0]) if hides else (value,)


_ANNOTATED: tuple[tuple[re.Pattern[str], tuple[Guess, ...]], ...] = (
    (re.compile(r"(long|int)tensor|int\[|integer\["), (Guess(Kind.INDEX, 0.0, found=False),)),
    (re.compile(r"booltensor|bool\["), (Guess(Kind.BOOL, 0.0, found=False),)),
    (re.compile(r"(list|sequence|tuple)\[.*tensor"), (Guess(Kind.LIST, 0.0, found=False),)),
    (re.compile(r"tensor|float\[|array|ndarray"), (Guess(Kind.FLOAT, 0.0),)),
    (re.compile(r"callable|module"), (Guess(Kind.CALLABLE, 0.5, found=False),)),
    (re.compile(r"(^|[^a-z])bool"), (Guess(Kind.LITERAL, 0.1, (True, False), found=False),)),
    (
        re.compile(r"(tuple|list|sequence|size)(\[|$)"),
        tuple(Guess(Kind.LITERAL, 0.3, (v,), found=False) for v in ((2, 2), (3,))),
    ),
    (re.compile(r"(^|[^a-z])float"), (Guess(Kind.LITERAL, 0.1, (FACTORS[0],), found=False),)),
    (re.compile(r"(^|[^a-z])int"), ()),
)
"""What annotations mean, the first that matches."""


def _from_annotation(annotation: str) -> Iterator[Guess]:
    text = annotation.replace(" ", "").lower()
    if "none" in text or "optional" in text:
        yield Guess(Kind.LITERAL, 2.0, (None,))
    for pattern, meant in _ANNOTATED if text else ():
        if pattern.search(text):
            yield from meant or _integers(0.1)
            return


def _tensors(parameter: Parameter, facts: Facts) -> Iterator[Guess]:
    name, kinds = parameter.name.lower().strip("_"), facts.kinds
    tensor = bool(kinds & {"tensor"}) or facts.rank is not None
    constant = facts.gradient is False
    scalar = bool(kinds & {"float", "int", "dim", "flag", "dtype"} or facts.strings) and not tensor
    as_index = bool(_INDEX.match(name)) or "index" in kinds
    as_mask = bool(_BOOL.match(name)) or "bool" in kinds
    if parameter.variadic:
        yield Guess(Kind.OMITTED, 0.9, found=False)
    if parameter.variadic or _LIST.match(name) or "sequence" in kinds:
        likely = parameter.variadic or ("sequence" in kinds and not tensor)  # a tensor has a length, too
        yield Guess(Kind.LIST, 0.5 if likely else 1.5, found=parameter.variadic)
    cost = 0.0 if facts.gradient else 0.8 if tensor else 1.0
    cost += (
        1.0 * constant * (not tensor) + 1.5 * scalar + 0.6 * (as_index and not facts.gradient) + 0.5 * as_mask
    )
    cost += 0.8 * bool(_FLOAT.match(name) or _FLAG.match(name) or _INT.match(name)) * (not facts.gradient)
    cost += 3.0 * (_CALLABLE.match(name) is not None or bool(kinds & {"callable", "module"}))
    yield Guess(Kind.FLOAT, cost)
    penalty = 2.5 * (facts.gradient is True) + 1.5 * scalar
    yield from _ordered(name, facts, penalty)
    yield Guess(Kind.INDEX, (0.4 if "index" in kinds else 0.7 if as_index else 3.2) + penalty, found=False)
    yield Guess(Kind.BOOL, (0.5 if as_mask else 3.4) + penalty, found=False)


def _ordered(name: str, facts: Facts, penalty: float) -> Iterator[Guess]:
    """Integers of a kind: where segments begin and end, each place once."""
    if _OFFSETS.search(name):
        cost = 0.3 if "offsets" in facts.kinds or name.startswith("cu") else 0.5
        yield Guess(Kind.INDEX, cost + penalty, found=False, structure="offsets")
    if _LENGTHS.search(name):
        yield Guess(Kind.INDEX, 0.5 + penalty, found=False, structure="lengths")
    if _PERMUTATION.search(name):
        yield Guess(Kind.INDEX, 0.35 + penalty, found=False, structure="permutation")


def _scalars(parameter: Parameter, facts: Facts) -> Iterator[Guess]:
    name, kinds = parameter.name.lower().strip("_"), facts.kinds
    tensor = "tensor" in kinds or facts.rank is not None
    base = 1.5 * tensor + 1.5 * (facts.gradient is True) + 0.5 * (facts.gradient is None)
    if facts.strings:
        choices: tuple[Nested, ...] = tuple(dict.fromkeys(facts.strings))
        yield Guess(Kind.LITERAL, 0.2 + base, choices)
        yield from (Guess(Kind.LITERAL, 0.3 + base + k / 10, (c,)) for k, c in enumerate(choices))
    if "none" in kinds:
        yield Guess(Kind.LITERAL, 1.6, (None,), found=True)
    flag, integer, real = bool(_FLAG.match(name)), bool(_INT.match(name)), bool(_FLOAT.match(name))
    small, likely = bool(_SMALL.search(name)), real or "float" in kinds
    if small:
        yield Guess(Kind.LITERAL, base + 0.45, (SMALL,), found=False)
    yield Guess(Kind.LITERAL, base + (0.5 if likely or small else 1.3), (FACTORS[0],), found=False)
    if "dim" in kinds or name in {"dim", "axis"}:
        yield from (
            Guess(Kind.LITERAL, base + 0.1 + k / 10, (v,), found=False) for k, v in enumerate((-1, 1, 0))
        )
    yield from _integers(base + (0.5 if integer or "int" in kinds else 1.8))
    flags = base + (0.3 if flag else 0.6 if "flag" in kinds else 2.0)
    yield Guess(Kind.LITERAL, flags, (True, False), found=False)
    if _AXES.match(name):
        yield from (
            Guess(Kind.LITERAL, base + 0.1 + k / 10, (v,), found=False) for k, v in enumerate(((1,), (0, 1)))
        )
    if facts.unpacked and not tensor:
        yield Guess(Kind.LITERAL, base + 0.2, (TUPLE[: facts.unpacked],), found=False)
    if kinds & {"callable", "module"} or _CALLABLE.match(name) is not None:
        yield Guess(Kind.CALLABLE, 0.3, found=False)
    if "dtype" in kinds or name in {"dtype", "out_dtype"}:
        yield Guess(Kind.OBJECT, 0.2, found=False, path="torch.float64")
    if name == "device":
        yield Guess(Kind.LITERAL, 0.2, ("cpu",))


def _integers(cost: float) -> Iterator[Guess]:
    yield Guess(Kind.SIZE, cost + 0.25, found=False)
    yield from (Guess(Kind.LITERAL, cost + k / 10, (v,), found=False) for k, v in enumerate((3, 2, 1, 0)))


def combinations(each: Sequence[Sequence[Guess]], most: int) -> Iterator[tuple[Guess, ...]]:
    """Combinations of one guess for each parameter, cheapest first, at most so many."""
    if not each or not all(each):
        yield from [()] if not each else []
        return
    first = (0,) * len(each)
    heap = [(sum(g[0].cost for g in each), first)]
    seen = {first}
    for _ in range(most):
        if not heap:
            return
        _, chosen = heapq.heappop(heap)
        yield tuple(g[k] for g, k in zip(each, chosen, strict=True))
        for place in range(len(each)):
            further = (*chosen[:place], chosen[place] + 1, *chosen[place + 1 :])
            if further[place] < len(each[place]) and further not in seen:
                seen.add(further)
                cost = math.fsum(g[k].cost for g, k in zip(each, further, strict=True))
                heapq.heappush(heap, (cost, further))
