"""Whatever the text, reading gives a SpecFile or a SpecError, soon."""

# ruff: noqa: E501 - specs and messages read better unbroken, one row a line

from __future__ import annotations

import random
import time
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradverify.errors import SpecError
from gradverify.spec import plan_function
from gradverify.spec.read import read_document
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
  free: {sizes: {r: [3, 1]}, arguments: "m:make"}
  Old: {skip: "replaced"}
"""
WORDS = [
    "shape", "inputs", "sizes", "value", "choices", "range", "dtype", "int64", "bool", "complex128", "float32", "null",
    "true", "no", "1e-6", ".nan", "-.inf", "0", "-1", "010", "9" * 30, "n", "n*n", "n//0", "n-9", "b", "[]", "{}", "[n, [n]]",
    "<<", "*a", "&a", "!!int", "!x", "---", "...", "%YAML 1.1", "? ", "- ", ": ", "\n", "\n  ", "\n    ", "\t", "#", "|", ">",
    "'", '"', "\\", "\0", "\u2028", "é", "\ud800", ",", "[", "]", "{", "}", "where", "tuple", "{tuple: [n]}", "optional",
    "Linear", "m.py::free", "@", "GV9", "special: [7]", "domain: positive", "__import__('os')", "f(n)", "n if n else 2",
]  # fmt: skip
SECONDS = 3.0
"""Far above what any example takes; a search without bound would take minutes."""


def survives(folder, text):
    start = time.perf_counter()
    try:
        spec = read_document(parse(text, "s.yaml"), folder / "s.yaml", ["GV101", "GV201"])
        for key in spec.functions:
            cases = plan_function(spec, key).cases
            assert len({case.id for case in cases}) == len(cases)
    except SpecError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.message
            assert problem.location.line >= 1
            assert problem.length >= 1
            f"{problem.message}{problem.location}".encode()
    assert time.perf_counter() - start < SECONDS


FUZZ = settings(
    max_examples=700,
    deadline=timedelta(seconds=SECONDS),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_the_spec_that_is_mutated_is_right(folder):
    assert len(read_document(parse(VALID, "s.yaml"), folder / "s.yaml", ["GV101", "GV201"]).functions) == 5


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


VALUES = st.recursive(
    st.sampled_from([word for word in WORDS if word not in "&*!"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(
            st.sampled_from(["shape", "value", "dtype", "range", "choices", "x"]), inner, max_size=3
        ).map(lambda entry: "{" + ", ".join(f"{key}: {value}" for key, value in entry.items()) + "}"),
    ),
    max_leaves=6,
)


@FUZZ
@given(
    st.sampled_from(["sizes", "inputs", "reference", "skip", "ignore", "arguments", "target"]), VALUES, VALUES
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
