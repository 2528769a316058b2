"""From evidence to guesses: what a parameter may be, the likeliest first.

What the name of a parameter says of it is a habit of authors, and no proof.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from gradverify.model import Nested, Parameter
from gradverify.verifier.infer import costs
from gradverify.verifier.infer.call_sites import Passed
from gradverify.verifier.infer.facts import Facts
from gradverify.verifier.infer.state import LENGTHS, Guess, Kind, literal


class Habit(Enum):
    """What parameters of some names mostly are."""

    INDEX = (
        r"(^|_)(idx|inds?|index|indexs|indices|ids?|labels?|perm|permutation|targets?|segments?|lengths?|batch"
        r"|neighbors?|edge_index|assignment|class(es)?)\d*($|_)|.*(indices|_idx|_ind|_index|_ids)$"
    )
    OFFSETS = (
        r"^cu_?\w*(lens?|offsets?)(_\w+)?$|(^|_)(offsets?|indptr|row_?ptr|ptr|crow|ccol|splits|boundaries)$"
    )
    LENGTHS = (
        r"(^|_)(lengths|lens|counts|sizes|sections|splits|num_(points|nodes|atoms|tokens)|batch_sizes)$"
        r"|^n_per_\w+$"
    )
    PERMUTATION = r"(^|_)(perm|permutation|permute_idx|sort(ed)?_(idx|ind|index|indices|ids)|order)$"
    AXES = r"^(axes|dims|reduce_dims|dimensions)$"
    MASK = r"(^|_)(mask|masks|padding_mask|valid|keep)($|_)|.*_mask$"
    FLAG = (
        r"^(is|use|with|do|has|should|return|keep|need|enable|allow)_.*|^(training|inplace|keepdim|reverse"
        r"|normali[sz]e|average|size_average|reduce|causal|symmetric|signed|narrow|verbose|inverse|transpose"
        r"|adjoint|periodic|hard|debug|deterministic|preserve_rng_state|unpack_data|train)$"
    )
    TRAINING = r"^(is_)?train(ing)?$"
    INT = (
        r"^(k|n|m|dim|axis|step|steps|stride|padding|pad|groups|dilation|order|degree|bits|levels|size|length"
        r"|max_iter|iterations|maxiter|n_iter|count|depth|ndim|p|seed|chunks?|blank|blank_idx|kernel_size"
        r"|output_size|mode)$|^(n|num|max|ignore)_.*|.*_ignore$"
        r"|.*_(size|dim|bits|iter|iters|num|steps|length|axis|count)$|.*(size|width)$"
    )
    FLOAT = (
        r"^(eps|epsilon|alpha|beta|gamma|delta|lambda_?|lambd|lam|lambda_?val|scale|slope|temperature|temp|tau"
        r"|margin|sigma|rate|p|momentum|coeff|coef|constant|factor|weight_decay|lr|threshold|thresh|theta"
        r"|grad_scale|width|min|max|min_val|max_val|lower|upper|low|high|gradient_scaling|multiplier|strength"
        r"|rho|c|a|b|t|h|dt|step_size)$"
        r"|.*_(eps|rate|scale|factor|slope|threshold|alpha|beta|lambda|coeff|weight|width|val|value)$"
    )
    SMALL = r"(^|_)(eps|epsilon|tol|atol|rtol|tolerance|jitter)\d*($|_)"
    CONSTANT = (
        r"^(y|t|ts|times?|gt|teacher|event|cos|sin|xs|knots|grid|coords|freqs?|pos|positions?|window|codes?"
        r"|boxes|anchors|mean|var|std|table|temperature|temp|tau|margin|delta|sigma|rate|momentum|lr|lo|hi"
        r"|low|high|lower|upper|min|max|start|stop|begin|end|threshold|thresh|zero_point|zp|advantages?|rewards?|returns|noise)$"
        r"|(^|_)(running|ref|old|prev|ema|target|truth|true|label|mask|buf|buffer|stats?)(s?)($|_)"
        r"|(pos|class|sample|loss)_weights?$"
    )
    """Labels, masks, buffers and settings; no word for what is learned."""
    LIST = r"^(inputs|tensors|xs|args|params|weights|list|arrays|features)$"
    CALLABLE = (
        r"^(f|fn|fun|func|function|kernel|callback|closure|run_function|distance|dist_fn|metric|activation)$"
        r"|.*_(fn|func|function)$"
    )


def habits_of(name: str) -> frozenset[Habit]:
    """Those that a name tells of."""
    plain = name.lower().strip("_")
    searched = {Habit.OFFSETS, Habit.LENGTHS, Habit.PERMUTATION, Habit.SMALL, Habit.CONSTANT}
    return frozenset(h for h in Habit if (re.search if h in searched else re.match)(h.value, plain))


FACTORS = (0.75, 2.5, 0.375)
"""Invented real numbers: a wrong factor shows at none of 0, 1 and 2. All are exact in 16 bits, so that no
rounding of what nobody wrote is held against backward."""

SMALL = 2.0**-10
"""An invented number that protects a division, or ends an iteration: small, and exact in 16 bits."""

TUPLE = (3, 2, 4, 5, 6)
"""Invented entries of a tuple of sizes."""

ENDS: tuple[tuple[str, str, int, int], ...] = (
    ("min", "max", -2, 3),
    ("lower", "upper", -2, 3),
    ("low", "high", -2, 3),
    ("start", "stop", 1, 3),
)
ENDS += (("start", "end", 1, 3), ("begin", "end", 1, 3))
"""What the names of a lower and of an upper end have in the same place, and integers for the two: between the
first ones inputs of ordinary size are cut off at neither, or at one; the others are places."""

COUNTS, AXES = (3, 2, 4, 5, 6), (-1, 1, 0)
"""Integers of one call, so that none is another one; of a window the length comes before the stride."""


def guesses(parameter: Parameter, facts: Facts, passed: Passed, default: Any) -> list[Guess]:  # noqa: ANN401
    """What a parameter may be, the likeliest first. `default` is `...` where it has none."""
    if parameter.variadic:
        return [_of(Kind.LIST, 0.5, found=True), _of(Kind.OMITTED, 0.9)]
    habits = habits_of(parameter.name)
    found = [
        *_from_default(parameter, facts, default),
        *_from_calls(passed),
        *_from_annotation(parameter.annotation),
        *_tensors(parameter, facts, habits),
        *_beside_default(_scalars(parameter, facts, habits), default),
    ]
    if passed.is_parameter:  # what requires grad is no mask and no number
        found = [g for g in found if g.kind in {Kind.FLOAT, Kind.LIST}] or found
    if parameter.exact:
        found = [g for g in found if _fits(g, parameter.annotation)]
        found += _of_type(parameter.annotation)
    best: dict[Guess, Guess] = {}
    for guess in found:
        key = replace(guess, cost=0.0, found=False)
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
    """What a schema alone leaves open: a tensor may be absent, a number is invented."""
    if schema_type.startswith("Optional["):
        yield Guess(Kind.LITERAL, 2.0, (None,))
    if schema_type == "number":
        yield literal(FACTORS[0], 0.1)


def _from_default(parameter: Parameter, facts: Facts, default: Any) -> Iterator[Guess]:  # noqa: ANN401
    if default is ...:
        return
    if default is None:
        cost = {True: 1.2, False: costs.DEFAULT, None: 0.4}[facts.gradient]
        yield Guess(Kind.LITERAL, cost, (None,))
    elif isinstance(default, bool | int | float | str):
        yield Guess(Kind.LITERAL, costs.DEFAULT, swept(default, parameter.name))
    elif isinstance(default, tuple) and all(isinstance(d, int | float | str) for d in default):
        yield Guess(Kind.LITERAL, costs.DEFAULT, (default,))
    else:
        yield Guess(Kind.OMITTED, 0.3)


def _beside_default(invented: Iterator[Guess], default: Any) -> Iterator[Guess]:  # noqa: ANN401
    """Invented numbers are dearer where the author wrote a value: what refuses it is repaired first."""
    written = type(default) in {int, float}
    for guess in invented:
        dear = written and guess.is_invented_number
        yield replace(guess, cost=guess.cost + costs.NOT_THE_DEFAULT) if dear else guess


def looks_real(name: str, facts: Facts) -> bool:
    """Whether a number of that name is likelier a real one than an integer."""
    return "float" in facts.kinds or ("whole" not in facts.kinds and Habit.FLOAT in habits_of(name))


def _from_calls(passed: Passed) -> Iterator[Guess]:
    for rank, value in enumerate(passed.literals):
        cost = 0.6 if value is None else 0.1
        yield Guess(
            Kind.LITERAL, cost + costs.NEXT_VALUE * rank, (None,) if value is None else swept(value, "")
        )


def swept(value: Nested, name: str) -> tuple[Nested, ...]:
    """A literal of the source, and beside a factor that would hide a mistake another one."""
    hides = isinstance(value, float) and value in {0.0, 1.0, 2.0} and not name.startswith("eps")
    return (value, FACTORS[0]) if hides else (value,)


def _of(kind: Kind, cost: float, *, found: bool = False, structure: str = "") -> Guess:
    return Guess(kind, cost, found=found, structure=structure)


_ANNOTATED: tuple[tuple[str, tuple[Guess, ...]], ...] = (
    (r"(long|int)tensor|int\[|integer\[", (_of(Kind.INDEX, 0.0),)),
    (r"booltensor|bool\[", (_of(Kind.BOOL, 0.0),)),
    (r"(list|sequence|tuple)\[.*tensor", (_of(Kind.LIST, 0.0),)),
    (r"tensor|float\[|array|ndarray", (_of(Kind.FLOAT, 0.0, found=True),)),
    (r"callable|module", (_of(Kind.CALLABLE, 0.5),)),
    (r"dtype", (Guess(Kind.OBJECT, 0.1, found=False, path="torch.float64"),)),
    (r"(^|[^a-z])bool", (Guess(Kind.LITERAL, 0.1, (True, False), found=False),)),
    (r"(tuple|list|sequence|size)(\[|$)", (literal((2, 2), 0.3), literal((3,), 0.3))),
    (r"(^|[^a-z])float", (literal(FACTORS[0], 0.1),)),
    (r"(^|[^a-z])int", ()),
)
"""What annotations mean, the first that matches."""


def _from_annotation(annotation: str) -> Iterator[Guess]:
    text = annotation.replace(" ", "").lower()
    if "none" in text or "optional" in text:
        yield Guess(Kind.LITERAL, 2.0, (None,))
    for pattern, meant in _ANNOTATED if text else ():
        if re.search(pattern, text):
            yield from meant or _integers(0.1)
            return


def _tensors(parameter: Parameter, facts: Facts, habits: frozenset[Habit]) -> Iterator[Guess]:
    kinds, given = facts.kinds, facts.gradient is True
    tensor = "tensor" in kinds or facts.rank is not None
    scalar = bool(kinds & {"float", "int", "dim", "flag", "dtype"} or facts.strings) and not tensor
    as_index, as_mask = Habit.INDEX in habits or "index" in kinds, Habit.MASK in habits or "bool" in kinds
    if Habit.LIST in habits or "sequence" in kinds:
        likely = "sequence" in kinds and not tensor  # a tensor has a length, too
        yield _of(Kind.LIST, 0.5 if likely else 1.5)
    cost = 0.0 if given else 0.8 if tensor else 1.0
    cost += 1.0 * (facts.gradient is False and not tensor) + 1.5 * scalar + 0.5 * as_mask
    cost += (0.6 * as_index + 0.8 * bool(habits & {Habit.FLOAT, Habit.FLAG, Habit.INT})) * (not given)
    cost += 3.0 * (Habit.CALLABLE in habits or bool(kinds & {"callable", "module"}))
    yield _of(Kind.FLOAT, cost, found=True)
    penalty = 2.5 * given + 1.5 * scalar
    if Habit.OFFSETS in habits:
        sure = "offsets" in kinds or parameter.name.lower().strip("_").startswith("cu")
        yield _of(Kind.INDEX, (0.3 if sure else 0.5) + penalty, structure="offsets")
    if Habit.LENGTHS in habits:
        yield _of(Kind.INDEX, 0.5 + penalty, structure=LENGTHS)
    if Habit.PERMUTATION in habits:
        yield _of(Kind.INDEX, 0.35 + penalty, structure="permutation")
    of_index = 0.4 if "index" in kinds else 0.7 if as_index else 3.2
    yield _of(Kind.INDEX, of_index + 0.3 * as_mask + penalty)  # a mask takes entries as an index does
    yield _of(Kind.BOOL, (0.5 if as_mask else 3.4) + penalty)


def _scalars(parameter: Parameter, facts: Facts, habits: frozenset[Habit]) -> Iterator[Guess]:
    name, kinds = parameter.name.lower().strip("_"), facts.kinds
    tensor = "tensor" in kinds or facts.rank is not None
    base = 1.5 * tensor + {True: 1.5, None: 0.5, False: 0.0}[facts.gradient]
    if facts.strings:
        choices: tuple[Nested, ...] = tuple(dict.fromkeys(facts.strings))
        yield Guess(Kind.LITERAL, 0.2 + base, choices)
        yield from (
            Guess(Kind.LITERAL, 0.3 + base + costs.NEXT_VALUE * k, (c,)) for k, c in enumerate(choices)
        )
    if "none" in kinds:
        yield Guess(Kind.LITERAL, 1.6, (None,))
    small = Habit.SMALL in habits
    if small:
        yield literal(SMALL, base + 0.45)
    real = small or looks_real(parameter.name, facts)
    yield literal(FACTORS[0], base + (0.5 if real else 1.3))
    if "dim" in kinds or name in {"dim", "axis"}:
        yield from _several((-1, 1, 0), base + 0.1)
    yield from _integers(base + (0.5 if Habit.INT in habits or "int" in kinds else 1.8))
    flags = base + (0.3 if Habit.FLAG in habits else 0.6 if "flag" in kinds else 2.0)
    # Of a mode both values are meant, whoever passes it.
    yield Guess(Kind.LITERAL, flags, (True, False), found=Habit.TRAINING in habits)
    if Habit.AXES in habits:
        yield from _several(((1,), (0, 1)), base + 0.1)
    if facts.unpacked and not tensor:
        yield literal(TUPLE[: facts.unpacked], base + 0.2)
    if kinds & {"callable", "module"} or Habit.CALLABLE in habits:
        yield _of(Kind.CALLABLE, 0.3)
    if "dtype" in kinds or name in {"dtype", "out_dtype"}:
        yield Guess(Kind.OBJECT, 0.2, found=False, path="torch.float64")
    if name == "device":
        yield Guess(Kind.LITERAL, 0.2, ("cpu",))


def _several(values: Iterable[Nested], cost: float) -> Iterator[Guess]:
    yield from (literal(v, cost + costs.NEXT_VALUE * k) for k, v in enumerate(values))


def _integers(cost: float) -> Iterator[Guess]:
    yield _of(Kind.SIZE, cost + 0.25)
    yield from _several((3, 2, 1, 0), cost)


def all_different(names: Sequence[str], combination: Sequence[Guess]) -> Iterator[tuple[Guess, ...]]:
    """The guesses with another number for each that was invented twice, larger or smaller, then as they are.

    What hangs on the difference of two numbers, or lies between them, is nothing where they are equal.
    """
    ended = _with_ends(names, combination)
    again = [k for k, g in enumerate(ended) if _invented(g) and _invented(g) in map(_invented, ended[:k])]
    if again:
        yield _different(ended, again, _larger)
        if any(type(ended[k].choices[0]) is float for k in again):
            yield _different(ended, again, _smaller, costs.LATER / 2)
    elif ended != list(combination):
        yield tuple(ended)
    else:
        yield tuple(combination)
        return
    *before, last = combination
    yield (*before, replace(last, cost=last.cost + costs.LATER))


def _with_ends(names: Sequence[str], combination: Sequence[Guess]) -> list[Guess]:
    """The guesses with ends apart for two invented numbers that bound a range, as `qmin` and `qmax` do."""
    changed = list(combination)
    for place, (low, high, lowest, highest) in itertools.product(range(len(names)), ENDS):
        partner = names[place].replace(low, high, 1)
        other = names.index(partner) if low in names[place] and partner in names else place
        if other == place or not all(_invented(combination[k]) for k in (place, other)):
            continue
        for k, end, sign in ((place, lowest, -1), (other, highest, 1)):
            value = combination[k].choices[0]
            if not isinstance(value, float):
                changed[k] = literal(end, combination[k].cost)
            elif lowest < 0:
                changed[k] = literal(sign * value, combination[k].cost)
    return changed


def _invented(guess: Guess) -> tuple[type, Nested] | None:
    number = guess.is_invented_number and guess.kind is Kind.LITERAL
    return (type(guess.choices[0]), guess.choices[0]) if number else None


def _different(
    combination: Sequence[Guess],
    again: Sequence[int],
    numbers: Callable[[Nested], Iterable[Nested]],
    cost: float = 0.0,
) -> tuple[Guess, ...]:
    """`again` are places of numbers that are there already, and `cost` is what another one costs."""
    changed = list(combination)
    for place in again:
        taken = {_invented(g) for g in changed}
        value = next(v for v in numbers(changed[place].choices[0]) if (type(v), v) not in taken)
        changed[place] = literal(value, changed[place].cost + cost)
    return tuple(changed)


def _larger(value: Nested) -> Iterator[Nested]:
    """Numbers beside an invented one, of rising size: times, levels and places mostly rise."""
    if isinstance(value, int):
        yield from AXES if value < 1 else COUNTS
        yield from itertools.count(COUNTS[-1] + 1)
    elif isinstance(value, float):
        yield from (
            FACTORS[1] + k if value == FACTORS[0] else value * 2.0 ** (k + 1) for k in itertools.count()
        )


def _smaller(value: Nested) -> Iterator[Nested]:
    """The same of falling size: as shares of one they are all valid."""
    if isinstance(value, int):
        yield from _larger(value)
    elif isinstance(value, float):
        yield from (value / 2.0 ** (k + 1) for k in itertools.count())
