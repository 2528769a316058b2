"""What the author says of a gradient that is not meant to be the derivative: straight-through, surrogate."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

from gradverify.verifier.collect.discover import source_of_class

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
