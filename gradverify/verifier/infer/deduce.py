"""From a live target to a deduced spec entry, or to the attempts that failed, with an entry to fill in.

With what the source leaves open: kinds of matrices, extreme values, and whether a derivative is meant.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gradverify.cases.inputs import GROUP, InputSpec, ListSpec, TensorSpec, ValueSpec
from gradverify.cases.sizes import Expression
from gradverify.deduced import TO_FILL_IN, Attempt, Deduced
from gradverify.model import Doubt, ObjectInput, Target, with_parts
from gradverify.source import GROUPS, definitions_behind
from gradverify.verifier.guard import default_dtype
from gradverify.verifier.infer.entry import entry_of, literal
from gradverify.verifier.infer.facts import Evidence
from gradverify.verifier.infer.known import Known, begun, known_of
from gradverify.verifier.infer.repairs import BROADCAST
from gradverify.verifier.infer.search import NoSolution, Solution, is_by_chance, search
from gradverify.verifier.infer.state import Argument, Kind, State
from gradverify.verifier.infer.trial import Caller, Ran, attempt
from gradverify.verifier.targets.discover import source_of_class

ANY_OBJECT = "module:attribute"
"""What stands for the path of an object."""


def to_fill_in(known: Known, state: State) -> tuple[InputSpec, ...]:
    """The arguments that have no default, as far as they are known."""
    needed = {p.name for p in known.parameters if not p.has_default}
    return tuple(i for a in state.arguments if a.name in needed for i in _input(known, a))


def _input(known: Known, argument: Argument) -> Iterator[InputSpec]:
    name, guess = argument.name, argument.guess
    facts = known.facts(name)
    is_object = any(not hasattr(Tensor, a) for a in facts.attributes) or bool(
        facts.kinds & {"callable", "module"}
    )
    if name in GROUPS:
        yield ObjectInput(name, GROUP)
        return
    match guess.kind:
        case Kind.LITERAL if not guess.is_invented_number:
            yield literal(name, guess.choices)
        case Kind.LITERAL | Kind.SIZE if not is_object:
            yield ValueSpec(name, TO_FILL_IN)  # an invented number has just failed
        case Kind.LIST:
            yield ListSpec(name, (_tensor(argument),) * argument.items)
        case Kind.INDEX | Kind.BOOL:
            yield _tensor(argument)
        case Kind.FLOAT if not is_object or facts.gradient:
            yield _tensor(argument)
        case Kind.OMITTED | Kind.PARAMETERS:
            pass
        case _:
            yield ObjectInput(name, guess.path if guess.found and guess.path else ANY_OBJECT)


def _tensor(argument: Argument) -> TensorSpec:
    plain = {Kind.INDEX: "int64", Kind.BOOL: "bool"}.get(argument.guess.kind, "float64")
    return TensorSpec(argument.name, (Expression(TO_FILL_IN),), argument.dtype or plain)


_WORDS = re.compile(
    r"straight[- _]?through|(?<![a-z])ste(?![a-z])|surrogate|pseudo[- _]?(?:gradient|derivative)"
    r"|(?:gradient|grad)[- _]?revers\w*|rev(?:ers\w*)?[- _]?grad\w*|natural[- _]gradient"
    r"|approximate(?:s|d)? (?:the )?gradient|gradient (?:is )?approximat\w+"
    r"|redirect(?:s|ed|ing)? (?:\w+ ){0,2}(?:re ?lu|grad\w*)"
    r"|(?:technically|deliberately|intentionally|purposely|on purpose) [\"'`]*(?:wrong|incorrect|inexact)"
    r"|not the (?:true|exact|real|actual) (?:gradient|derivative)"
    r"|relevances?(?![a-z])|(?<![a-z])lrp(?![a-z])|guided[- _]?backprop\w*",
    re.IGNORECASE,
)
"""How a deliberate gradient is called in names, comments and docstrings."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a new word of a name begins: `RoundSteFn` is `Round Ste Fn`."""


_PROSE = re.compile(
    r"quanti[sz]\w*|binari[sz]\w*|heaviside|spik(?:e|ing)\w*|compress\w*|sketch\w*"
    r"|(?:clip|clamp|scal|stop|detach|modif|mask|filter|bypass|approximat|estimat|smooth|fak)\w*"
    r" (?:the |its |of |a )*(?:gradient|grad|backward)s?"
    r"|custom\w* (?:the |its |of |a )*grad(?:ient)?s?(?![a-z])"
    r"|(?:gradient|grad|backward)s? (?:is |are |will be |of )*"
    r"(?:clip|clamp|scal|stop|detach|modif|mask|filter|bypass|approximat|estimat|smooth|unchanged)\w*"
    r"|forward (?:pass )?but not (?:in |during )?(?:the |its )?backward",
    re.IGNORECASE,
)
"""What in a name or a docstring goes with such a gradient; in lines of code these are ordinary words."""


def deliberate_gradient(value: Any, module: ModuleType | None) -> str:  # noqa: ANN401
    """The words by which the class, or the module it stands in, calls its gradient deliberate; else empty."""
    name, place = getattr(value, "__qualname__", ""), getattr(module, "__name__", "").rpartition(".")[2]
    try:
        own = source_of_class(value) if isinstance(value, type) else inspect.getsource(value)
    except (OSError, TypeError, SyntaxError, ValueError):
        own = getattr(value, "__doc__", None) or ""
    doc, about = getattr(value, "__doc__", None) or "", getattr(module, "__doc__", None) or ""
    reported = [(_WORDS, t) for t in (name.replace("_", " "), place.replace("_", " "), own, about)]
    for words, text in [*reported, (_PROSE, name.replace("_", " ")), (_PROSE, doc)]:
        found = words.search(_HUMP.sub(" ", text))
        if found is not None:
            return " ".join(found[0].lower().split())
    return ""


LARGEST_EPSILON = 1e-4
"""The largest number that is taken for one that guards a division, a root or a logarithm."""

_KINDS = frozenset({"eps", "tiny", "smallest_normal"})
"""What `torch.finfo` calls its small numbers."""


def doubts_of_source(value: Any, module: ModuleType | None, evidence: Evidence) -> Iterator[Doubt]:  # noqa: ANN401
    """What is in doubt whatever inputs are found for a target."""
    if evidence.factorization:
        yield Doubt("", f"what kind of matrix `{evidence.factorization}` gets")
    if evidence.clamps:
        yield Doubt("", "that such values are valid (backward clamps, and forward does not)", extreme=True)
    epsilon = next(_epsilons(getattr(value, "backward", None)), "")
    if epsilon and not any(_epsilons(getattr(value, "forward", None))):
        # Such a gradient is another one where forward has a pole, or nearly so, and the right one elsewhere.
        yield Doubt("", f"that such values are valid (backward has {epsilon} of its own)", extreme=True)
    said = deliberate_gradient(value, module)
    if said:
        yield Doubt("", f"that backward should be the derivative (its source says `{said}`)", intent=True)


def _epsilons(function: Any) -> Iterator[str]:  # noqa: ANN401 - whatever the user's methods are
    """Small numbers of a function, or of what it calls by name, as they are written."""
    for body, known in definitions_behind(function):
        for node in ast.walk(body):
            if isinstance(node, ast.Attribute) and node.attr in _KINDS:
                yield node.attr
            value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                value = known.get(node.id)
            if isinstance(value, float) and 0 < value <= LARGEST_EPSILON:
                yield ast.unparse(node)


FEWER_TRIES = 150
"""Calls of the search in float32: by then every state has been refused in float64."""

OF_FLOAT32, OF_FLOAT64 = 1e-4, 1e-10
"""How far outputs differ, relatively or not, that were rounded to float32 on the way; and that were not."""


def deduce(
    value: Any,  # noqa: ANN401
    target: Target,
    module: ModuleType | None,
    device: str = "cpu",
) -> Deduced | tuple[Attempt, ...]:
    """Inputs that the target accepts as a spec entry, or the attempts with how they were answered."""
    known = known_of(value, target, module, device)
    found, known, dtype = _searched(target, known)
    if isinstance(found, NoSolution):
        return tuple(replace(a, inputs=to_fill_in(known, state)) for a, state in found.attempts)
    if not dtype and _follows_default(known.caller, found):
        dtype = "float64"
    with default_dtype(dtype):
        entry = entry_of(target, module, known, found)
    doubts = (*entry.doubts, *doubts_of_source(value, module, known.evidence))
    return replace(entry, spec=replace(entry.spec, default_dtype=dtype), doubts=doubts)


def _searched(target: Target, known: Known) -> tuple[Solution | NoSolution, Known, str]:
    """What the search finds, with what is known for it, and the default dtype of torch that it takes."""
    names, states = [p.name for p in with_parts(target.parameters)], list(begun(known))
    found = search(known.caller, states, names)
    if isinstance(found, NoSolution) or is_by_chance(found.state):
        found = _better(found, search(known.caller, states, names, further=[BROADCAST]))
    if isinstance(found, Solution):
        return found, known, ""
    if _mixes_dtypes(found):
        with default_dtype("float64"):
            again = search(known.caller, states, names)
        if isinstance(again, Solution):
            return again, known, "float64"
    # Kernels that know float32 alone: the verifier finds that float64 is refused, too.
    in_float32 = replace(known, caller=replace(known.caller, dtype=torch.float32))
    again = search(in_float32.caller, states, names, FEWER_TRIES)
    whole = isinstance(again, Solution) and again.ran.is_whole
    return (again, in_float32, "") if whole else (found, known, "")


def _better(first: Solution | NoSolution, again: Solution | NoSolution) -> Solution | NoSolution:
    """Inputs with a number beside tensors whose sizes differ, which tell more than squares; or the first."""
    if isinstance(first, NoSolution) or isinstance(again, NoSolution):
        return first if isinstance(again, NoSolution) else again
    shows_less = is_by_chance(again.state) or (first.ran.is_whole and not again.ran.is_whole)
    return first if shows_less else again


def _mixes_dtypes(found: NoSolution) -> bool:
    words = " ".join(a.answer for a, _ in found.attempts).lower()
    return "float" in words and ("double" in words or "overflow" in words)


def _follows_default(caller: Caller, found: Solution) -> bool:
    """Whether forward keeps what it computes in torch's default dtype, which takes digits from float64."""
    if caller.dtype is not torch.float64 or not found.ran.is_whole:
        return False
    with default_dtype("float64"):
        wider = attempt(caller, found.state)
    if not isinstance(wider, Ran) or not wider.is_whole or len(wider.outputs) != len(found.ran.outputs):
        return False
    pairs = [(a.to(b.dtype), b) for a, b in zip(found.ran.outputs, wider.outputs, strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        return False
    near = all(torch.allclose(a, b, rtol=OF_FLOAT32, atol=OF_FLOAT32) for a, b in pairs)
    return near and any(not torch.allclose(a, b, rtol=OF_FLOAT64, atol=OF_FLOAT64) for a, b in pairs)
