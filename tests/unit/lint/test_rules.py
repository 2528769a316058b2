"""Every static rule speaks of the wrong examples and of nothing else, and leaves the right ones alone."""

import ast
import importlib.util
from pathlib import Path

import pytest

from gradverify.lint import NOTES, RULES, lint_source
from gradverify.rules import rule

_spec = importlib.util.spec_from_file_location("lint_examples", Path(__file__).with_name("examples.py"))
examples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(examples)

STATIC = {**RULES, **NOTES}


def codes(body):
    linted = lint_source(examples.module(body).encode(), "m.py", STATIC)
    assert linted.error is None, linted.error
    assert linted.functions == ("Example",)
    return {found.code for found in linted.findings}


def cases(table):
    return [pytest.param(c, b, id=f"{c}-{n}") for c, bodies in table.items() for n, b in enumerate(bodies)]


@pytest.mark.parametrize(("code", "body"), cases(examples.WRONG))
def test_wrong(code, body):
    assert codes(body) == {code}


@pytest.mark.parametrize(("code", "body"), cases(examples.RIGHT))
def test_right(code, body):
    assert code not in codes(body)


def test_every_rule_has_both():
    assert STATIC.keys() == examples.WRONG.keys() == examples.RIGHT.keys()


@pytest.mark.parametrize("code", STATIC)
def test_the_page_shows_it(code):
    example = rule(code).page.example
    found = lint_source(f"import torch\n{example}".encode(), "m.py", STATIC).findings
    assert {f.code for f in found} == {code}
    ast.parse(example)


def test_what_instances_set_is_to_be_passed():
    (found,) = lint_source(examples.module(examples.WRONG["GV812"][3]).encode(), "m.py", STATIC).findings
    assert (
        found.hint
        == "__init__ sets it, of an instance, which ctx is none: pass it to forward, and set it there."
    )


def test_hints_are_sentences():
    for bodies in examples.WRONG.values():
        for body in bodies:
            for found in lint_source(examples.module(body).encode(), "m.py", STATIC).findings:
                assert found.hint.endswith((".", "?"))
                assert not found.message.endswith(".")
