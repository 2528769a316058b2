"""Whatever the text, reading gives a SpecFile or a SpecError, soon."""

# ruff: noqa: E501 - specs and messages read better unbroken, one row a line

from __future__ import annotations

import random
import resource
import sys
import time

import pytest
from extent import extent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradverify.errors import SpecError
from gradverify.report.console import TextStyle
from gradverify.report.text import render_mistakes
from gradverify.spec.plan import plan_function
from gradverify.spec.read import read_document
from gradverify.spec.schema import FunctionEntry, HookedEntry
from gradverify.spec.source import parse

VALID = """\
gradverify: 1
module: m.py
defaults: {seed: 0, dtype: float64, rtol: 1e-7}
functions:
  Linear:
    sizes: {b: [3, 1, 0], n: 4, m: [2, 5]}
    inputs:
      input: [b, n]
      weight: {shape: [m, 2*n - n], range: [-1, n], special: [0.0], avoid: [0.5]}
      bias: {shape: [m], optional: true, domain: nonzero}
    reference: torch.nn.functional.linear
    ignore: {GV2: "first order"}
  Gather@x:
    inputs:
      x: [n, d]
      index: {shape: [k, d], dtype: int64, range: [0, n]}
      mode: {choices: [mean, sum, null]}
  softmax: {inputs: {x: {value: [[1, 2.5]], dtype: float64}, dim: {value: -1}}}
  free: {sizes: {r: [3, 1]}, arguments: "m:make", inputs: {x: {avoid: [0], constant_at: {0: [r]}}}}
  Old: {skip: "replaced"}
  Stack:
    sizes: {n: [3, 2], k: [1, 2]}
    inputs:
      dim: {size: n - k}
      xs: {list: {of: {shape: [n, n], structure: spd}, count: [2, 1]}}
    where: ["n > k", "not n == 2 or k < 3"]
    cases: product
    tolerance: {rtol: 1e-5}
    devices: [cpu]
    outputs: [0]
    surrogate: {call: a.b, inputs: [xs]}
    xfail: [{codes: [GV201], reason: r, until: 2027-01-01, input: xs, cases: [n=3]}]
  free@forms:
    target: torch.nn:Linear
    init: {a: n, b: [n, 2]}
    inputs:
      a: {concat: [[n, 3], {shape: [n, 4], structure: unit-norm}]}
      b: {object: torch.nn.Linear, init: [n, 2]}
      c: {tuple: [2, n, [n, 1.5]]}
      d: {shape: [n + 1], dtype: int32, structure: offsets, range: [0, n]}
      e: {shape: [n, 2], constant_at: {0: [0, -1]}, distinct: true}
      f: {shape: [n], make: "m:f", mutated: true}
      g: {list: [[n], {shape: [m], ties: true}], optional: true}
    cases: [{g: null}, {}]
    reference: {call: a.b, arguments: [a, b]}
    default_dtype: float64
    notes: "n"
"""
WORDS = [
    "shape", "inputs", "sizes", "value", "choices", "range", "dtype", "int64", "bool", "complex128", "float32", "null",
    "true", "no", "1e-6", ".nan", "-.inf", "0", "-1", "010", "9" * 30, "1000000000", "2147483647", "[1000000000, 3]", "n", "n*n", "n//0", "n-9", "b", "[]", "{}", "[n, [n]]",
    "<<", "*a", "&a", "!!int", "!x", "---", "...", "%YAML 1.1", "? ", "- ", ": ", "\n", "\n  ", "\n    ", "\t", "#", "|", ">",
    "'", '"', "\\", "\0", "\u2028", "é", "\ud800", ",", "[", "]", "{", "}", "where", "tuple", "{tuple: [n]}", "optional",
    "list", "concat", "object", "size", "structure", "spd", "offsets", "constant_at", "init", "cases", "{0: [0]}", "[{n: 3}]",
    "of", "count", "make", "xfail", "codes", "n > k", "n > k > 2", "and", "not n", "2027-01-01", "surrogate", "reason", "{size: n}",
    "Linear", "m.py::free", "@", "GV9", "special: [7]", "domain: positive", "__import__('os')", "f(n)", "n if n else 2",
]  # fmt: skip
SECONDS = 60.0
"""Longer than any machine needs for an example, and shorter than the minutes that quadratic reading took."""

MEBIBYTES = 200
"""Of one example, from its text to what is printed."""

EXECUTED = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect"}
executed = []


@sys.addaudithook
def _watch(event, arguments):
    if event in EXECUTED or (event == "import" and arguments[0] in {"m", "somewhere"}):
        executed.append((event, arguments))


def largest():
    """The most memory that this process has had, in MiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def survives(folder, text):
    start, before = time.process_time(), largest()
    executed.clear()
    try:
        spec = read_document(parse(text, "s.yaml"), folder / "s.yaml", ["GV101", "GV201"])
        for key in spec.functions:
            plan = plan_function(spec, key)
            assert len({case.id for case in plan.cases}) == len(plan.cases)
    except SpecError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.message
            assert problem.location.line >= 1
            assert problem.length >= 1
            f"{problem.message}{problem.location}".encode()
        assert len(render_mistakes(error.problems, TextStyle())) < 100_000
    assert time.process_time() - start < SECONDS
    assert largest() - before < MEBIBYTES
    assert not executed


FUZZ = settings(
    max_examples=extent(100, 700),
    deadline=None,  # the clock of the machine is no measure: see `survives`
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_the_spec_that_is_mutated_is_right(folder):
    spec = read_document(parse(VALID, "s.yaml"), folder / "s.yaml", ["GV101", "GV201"])
    assert len(spec.functions) == 7


@FUZZ
@given(st.integers(0, 2**32))
def test_mutated_specs(folder, seed):
    chance = random.Random(seed)
    text = VALID
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(text))
        end = min(len(text), start + chance.choice([0, 0, 1, 1, 3, 8, 30]))
        text = text[:start] + chance.choice([*WORDS, "", "", chr(chance.randrange(1, 0x300))]) + text[end:]
    survives(folder, text)


KEYS = [
    "shape", "value", "dtype", "range", "choices", "x", "structure", "list", "concat", "of", "count", "object", "init", "tuple",
    "size", "constant_at", "make", "call", "arguments", "inputs", "reason", "codes", "until", "cases", "n", "rtol", "0",
]  # fmt: skip
VALUES = st.recursive(
    st.sampled_from([word for word in WORDS if word not in "&*!"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=3).map(
            lambda entry: "{" + ", ".join(f"{key}: {value}" for key, value in entry.items()) + "}"
        ),
    ),
    max_leaves=6,
)


@FUZZ
@given(
    st.sampled_from(sorted({*FunctionEntry.model_fields, *HookedEntry.model_fields, "internals"})),
    VALUES,
    VALUES,
)
def test_any_value_anywhere(folder, key, first, second):
    survives(
        folder,
        f"module: m.py\nfunctions:\n  free:\n    {key}: {first}\n    inputs: {{x: {second}, y: [n, b]}}\n",
    )
    survives(
        folder,
        f"module: m.py\nfunctions:\n  free:\n    sizes: {{n: {second}}}\n    inputs: {{x: {first}, y: [n]}}\n",
    )


@FUZZ
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), max_size=25).map("".join))
def test_random_text(folder, text):
    survives(folder, text)


MANY = 40_000
LARGE = {
    "a size": "sizes: {n: [1000000000, 3]}, inputs: {x: [n], y: [1000000000]}",
    "a size of a hook": "sizes: {n: [1000000000, 2147483647]}, arguments: 'm:make'",
    "sizes": f"sizes: {{n: [{', '.join(map(str, range(MANY)))}]}}, inputs: {{x: [n]}}",
    "choices": f"inputs: {{x: {{choices: [{', '.join(map(str, range(MANY)))}]}}}}",
    "dimensions": f"inputs: {{x: [{', '.join(f'n{i}' for i in range(900))}]}}",
    "inputs": f"inputs: {{{', '.join(f'x{i}: [n]' for i in range(900))}}}",
    "unknown keys": f"inputs: {{x: {{{', '.join(f'k{i}: 1' for i in range(MANY // 2))}}}}}",
    "expected failures": f"inputs: {{x: [n]}}, xfail: [{'{codes: [GV101], reason: r, cases: [n=3]}, ' * 900}]",
}
"""Entries that took minutes or gigabytes."""


@pytest.mark.parametrize("entry", LARGE.values(), ids=list(LARGE))
def test_large_entries(folder, entry):
    survives(folder, f"module: m.py\nfunctions:\n  free: {{{entry}}}\n")


def test_many_functions_with_mistakes(folder):
    survives(
        folder,
        "module: m.py\nfunctions:\n" + "".join(f"  fre{i}: {{inputs: {{x: 3}}}}\n" for i in range(3000)),
    )
