"""What decided a verdict, in words that do not depend on how the verifier is built.

A report of the command holds codes, causes and points; what else decided is in its sentences. `HELD` maps
these to words of the field: the kind of sample, the way in which backward was called, the fact that was
guessed. A sentence that changes is changed here, and nowhere else in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

HELD = {
    # The kind of sample: where the values, sizes or options come from.
    "sample: size zero": r"forward returns is empty|size of 0|\b\w+=0\b.{0,40}, which",
    "sample: past a constant": r"(?:past|, at) (?:a power|[A-Z_]+ = |\d)",
    "sample: size or value that nobody declared": r"but no spec says that",
    "sample: evaluation mode": r"^GV\d+ \w in evaluation mode",
    "sample: buffer with other values": r"with other values in the buffer",
    "sample: ends of the declared range": r"\(the declared range\)|over the declared range",
    "sample: kink": r"forward has (?:a )?kink",
    # The way in which forward and backward are called.
    "call: grad_output of ones": r"for a grad_output of ones",
    "call: grad_output of zeros": r"for a grad_output of zeros",
    "call: grad_output of one value": r"for a grad_output of one value",
    "call: large grad_output": r"multiplied by 2\^\d|times as large as one",
    "call: small grad_output": r"multiplied by 2\^-|times as small as one",
    "call: grad_output whose sums are zero": r"for a grad_output (?:whose \w+ sum|that sums) to zero",
    "call: grad_output with few entries": r"for a grad_output with (?:a single entry|one entry in each row)",
    "call: grad_output of mixed magnitudes": r"whose rows differ in size",
    "call: sum of grad_outputs": r"not linear in grad_output",
    "call: grad_output ignored": r"ignores grad_output",
    "call: undefined grad_output": r"^GV407 ",
    "call: layout of grad_output": r"^GV404 ",
    "call: layout of an input": r"^GV405 ",
    "call: subset of inputs requires grad": r"^GV406 ",
    "call: another forward before backward": r"after a second forward|after the module was called",
    "call: backward twice": r"^GV409 ",
    "call: results kept over calls": r"changes with the next call",
    "call: the same again": r"^GV410 .*(?:differ|changes)|^GV408 .*again",
    "call: unwritten memory": r"uninitialised memory",
    "call: one tensor given twice": r"given twice|same tensor",
    "call: kept memory": r"memory grows",
    "call: tensor on ctx": r"^GV411 w",
    "call: writes into grad_output": r"^GV401 ",
    "call: writes into an input": r"^GV402 ",
    "call: writes into a saved tensor": r"^GV403 ",
    "call: parameter with a .grad": r"^GV414 ",
    "call: saved-tensor hooks": r"^GV413 ",
    "call: jvp": r"^GV501 ",
    "call: vmap": r"^GV502 ",
    "call: opcheck": r"^GV504 ",
    "call: gradient None or zeros": r"^GV107 [ew]",
    "call: None for an input that counts as a constant": r"counts as a constant",
    "call: reference": r"^GV30\d .*reference",
    "call: surrogate": r"^GV302 .*surrogate",
    # Precision.
    "precision: float32 alone": r"no float64 path",
    "precision: float32 inside backward": r"float32 precision only",
    "precision: less than rtol": r"slightly off",
    "precision: float32": r"^GV60[12] \w .*\bfloat32\b",
    "precision: bfloat16": r"^GV60[12] \w .*\bbfloat16\b",
    "precision: float16": r"^GV60[12] \w .*\bfloat16\b",
    "precision: rounded": r"^GV601 n .*not correctly rounded",
    "precision: no truth": r"no float64 path and no composite",
    # What could not be measured.
    "unknown: noise or oscillation": r"changes too fast|is too noisy",
    "unknown: short formats": r"16 bits or fewer",
    "unknown: too many calls": r"more calls than one target",
    "unknown: diverging slope": r"may have no limit|forward jumps",
    "unknown: iteration to a tolerance": r"forward repeats a step|but not with `range: \[(?:-0.3|0.7),",
    # The fact that was guessed.
    "guess: shape": r"guessed .*(?:the shape of|may have the shape)",
    "guess: sizes that differ": r"guessed .*may differ",
    "guess: another input": r"guessed .*does not depend on",
    "guess: size": r"guessed .*(?:a size of|more than one entry along|at no other size)",
    "guess: number": r"guessed .*`\w+` \(-?[\d.]",
    "guess: integer tensor": r"guessed .*\(integer tensor\)",
    "guess: structure of a matrix": r"guessed .*what kind of matrix|but not with `structure",
    "guess: values": r"guessed .*that such values|values of `\w+` are valid",
    "guess: zeros of padding": r"but not with .* that leaves zeros",
    "guess: dtype": r"guessed .*` is float64",
    "guess: length of a list": r"guessed .*how many tensors",
    "guess: backward is meant to be the derivative": r"guessed .*backward should be the derivative",
    "guess: value of an option": r"in every case: with|is None in every case",
    "guess: other sizes": r"other sizes were verified",
    "guess: kind of an argument": r"may not be what is meant",
}
"""Word: what its sentences match, after their code and the first letter of their severity."""

_PATTERNS = {word: re.compile(pattern, re.DOTALL) for word, pattern in HELD.items()}


def held(target: dict) -> set[str]:
    """All words that a target of a JSON report holds."""
    return set(_held(target))


def _held(target: dict) -> Iterator[str]:
    for found in target["findings"]:
        code, severity = found["code"], found["severity"]
        yield f"{severity} {code}"
        if found.get("cause"):
            yield f"cause: {found['cause']}"
        case = found.get("case") or {}
        if severity != "note" and case.get("point", "typical") != "typical":
            yield f"sample: {case['point']} values"
        said = f"{code} {severity[0]} {found['message']} {case.get('id', '')}"
        yield from (word for word, pattern in _PATTERNS.items() if pattern.search(said))
    yield f"{target['status']}, {target['inputs']}"
