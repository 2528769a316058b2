"""What the source leaves open: kinds of matrices, extreme values, and whether a derivative is meant."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from gradverify.model import Doubt
from gradverify.source import definitions_behind
from gradverify.verifier.collect.lines import source_of_class
from gradverify.verifier.infer.facts import Evidence

LARGEST_EPSILON = 1e-4
"""The largest number that is taken for one that guards a division, a root or a logarithm."""

_KINDS = frozenset({"eps", "tiny", "smallest_normal"})
"""What `torch.finfo` calls its small numbers."""


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

_DRAWS = re.compile(r"\b(multinomial|bernoulli_?|randn?(?:_like)?|randint|normal_|uniform_|poisson)\(")
"""Calls that draw random numbers."""


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


def deliberate_gradient(value: Any, module: ModuleType | None) -> str:  # noqa: ANN401
    """The words by which the class, or the module it stands in, calls its gradient deliberate; else empty."""
    name, place = getattr(value, "__qualname__", ""), getattr(module, "__name__", "").rpartition(".")[2]
    try:
        own = source_of_class(value) if isinstance(value, type) else inspect.getsource(value)
    except (OSError, TypeError, SyntaxError, ValueError):
        own = getattr(value, "__doc__", None) or ""
    doc, about = getattr(value, "__doc__", None) or "", getattr(module, "__doc__", None) or ""
    told = [(_WORDS, t) for t in (name.replace("_", " "), place.replace("_", " "), own, about)]
    for words, text in [*told, (_PROSE, name.replace("_", " ")), (_PROSE, doc)]:
        found = words.search(_HUMP.sub(" ", text))
        if found is not None:
            return " ".join(found[0].lower().split())
    return _drawn_in_backward(value)


def _drawn_in_backward(value: Any) -> str:  # noqa: ANN401
    """The call by which backward draws random numbers where forward draws none: a sample of the gradient."""
    try:
        forward, backward = (inspect.getsource(getattr(value, n)) for n in ("forward", "backward"))
    except (AttributeError, OSError, TypeError):
        return ""
    drawn = _DRAWS.search(backward)
    return drawn[1] if drawn is not None and _DRAWS.search(forward) is None else ""
