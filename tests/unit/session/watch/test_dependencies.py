"""Which verdicts still stand: on the texts that they rest on, and in doubt not."""

import pytest

from gradverify.model import Case, Companion, InputSource, ObjectInput, TargetPlan
from gradverify.session.watch.dependencies import Contents, still_holds
from gradverify.spec.read import read_spec

MODULE = """
from package import scaling

LIMIT = 3

def helper(x):
    return x

def composite(x):
    return 2 * x

def unused(x):
    return x

class First:
    def forward(ctx, x):
        return helper(x)

class Second:
    def forward(ctx, x):
        return 2 * x

second = Second.apply
first = First.apply
"""
FILES = {
    "m.py": MODULE,
    "pyproject.toml": "",
    "package/__init__.py": "",
    "package/scaling.py": "FACTOR = 1\n",
    "csrc/kernel.cu": "",
    "m.gradverify.yaml": "gradverify: 1\nmodule: m.py\nfunctions: {First: {inputs: {x: [2]}}}\n",
}
PLAN = TargetPlan("First", "First", InputSource.SPEC, cases=(Case("base", 0),))
REFERRING = {
    "reference": TargetPlan("First", "First", InputSource.SPEC, reference="m:composite"),
    "surrogate": TargetPlan("First", "First", InputSource.SPEC, surrogate=Companion("m:composite")),
    "hook": TargetPlan("First", "First", InputSource.SPEC, cases=(Case("base", 0, hook="m:composite"),)),
    "object": TargetPlan(
        "First",
        "First",
        InputSource.SPEC,
        cases=(Case("base", 0, inputs=(ObjectInput("f", "m:composite"),)),),
    ),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        write(tmp_path, name, text)
    return tmp_path


def write(folder, name, text):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)


def footing(here, contents):
    path = here / "m.gradverify.yaml"
    spec = read_spec(path, shown_path=path.name, known_codes=[]) if path.exists() else None
    return contents.dependencies(here / "m.py", spec)


CHANGES = {
    "nothing": ({}, True, True),
    "a comment": ({"m.py": MODULE + "\n# more\n"}, True, True),
    "a class": ({"m.py": MODULE.replace("return 2 * x\n\nsecond", "return 3 * x\n\nsecond")}, True, True),
    "its caller": ({"m.py": MODULE.replace("x\n\nsecond", "First.apply(x)\n\nsecond")}, True, False),
    "a new caller": ({"m.py": MODULE + "\nclass Third:\n    def g(x):\n        first(x)\n"}, True, False),
    "a function": ({"m.py": MODULE.replace("return 2 * x\n", "return x + x\n", 1)}, True, False),
    "its own body": ({"m.py": MODULE.replace("helper(x)\n\nclass", "3 * helper(x)\n\nclass")}, False, False),
    "what it calls": ({"m.py": MODULE.replace("    return x\n", "    return -x\n", 1)}, False, False),
    "a statement": ({"m.py": MODULE.replace("LIMIT = 3", "LIMIT = 4")}, False, False),
    "an error": ({"m.py": MODULE + "("}, False, False),
    "what is imported": ({"package/scaling.py": "FACTOR = 2\n"}, False, False),
    "a package": ({"package/__init__.py": "MORE = 2\n"}, False, False),
    "a kernel": ({"csrc/kernel.cu": "// more"}, False, False),
    "a new kernel": ({"new.cu": ""}, False, False),
    "the spec": ({"m.gradverify.yaml": FILES["m.gradverify.yaml"] + "# more\n"}, True, False),
    "another file": ({"other.py": "MORE = 2\n"}, True, True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_still_holds(here, name):
    """With a plan of the spec that is the same, and with inputs inferred from the module."""
    files, planned, inferred = CHANGES[name]
    contents = Contents()
    before = footing(here, contents)
    for file, text in files.items():
        write(here, file, text)
    after = footing(here, contents)
    assert still_holds("First", PLAN, before, after) is planned
    assert still_holds("First", None, before, after) is inferred


@pytest.mark.parametrize("file", ["package/scaling.py", "csrc/kernel.cu"])
def test_what_is_gone_no_longer_carries(here, file):
    contents = Contents()
    before = footing(here, contents)
    (here / file).unlink()
    assert not still_holds("First", PLAN, before, footing(here, contents))


def test_inferred_inputs_do_not_stand_on_a_spec_that_is_gone(here):
    contents = Contents()
    before = footing(here, contents)
    (here / "m.gradverify.yaml").unlink()
    assert not still_holds("First", None, before, footing(here, contents))


@pytest.mark.parametrize("how", REFERRING)
def test_what_a_plan_names_carries_too(here, how):
    """The definition in the module that a spec names beside the target."""
    contents = Contents()
    before = footing(here, contents)
    write(here, "m.py", MODULE.replace("return 2 * x\n\ndef unused", "return 3 * x\n\ndef unused"))
    after = footing(here, contents)
    assert still_holds("First", PLAN, before, after)
    assert not still_holds("First", REFERRING[how], before, after)


def test_a_touched_file_is_the_same(here):
    contents = Contents()
    before = footing(here, contents)
    (here / "package" / "scaling.py").unlink()
    write(here, "package/scaling.py", FILES["package/scaling.py"])
    assert footing(here, contents) == before
