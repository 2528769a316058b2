"""Functions without a spec: what verdict they get, and that `init` writes a spec which gives the same."""

import ast
import json
import re

import pytest
import verdicts_only
from extent import extent

VERDICTS = {
    "Linear": "passed",
    "LinearFactor": "failed",
    "CrossEntropy": "passed",
    "CrossEntropyUnweighted": "failed",
    "PickedRows": "inconclusive",
    "Repeated": "failed",
    "Normalized": "inconclusive",
    "Attention": "passed",
    "Gated": "passed",
    "Log": "passed",
    "ScaledSquare": "inconclusive",
    "Modulus": "inconclusive",
    "ModulusTwice": "failed",
    "LogDeterminant": "inconclusive",
    "Untrained": "failed",
    "Constant": "passed",
    "Leaky": "unchecked",
    "Portal": "inconclusive",
    "Residual": "passed",
    "Impossible": "unchecked",
    "Act": "inconclusive",
    "ClampSte": "inconclusive",
    "Bounded": "inconclusive",
    "Weighted": "failed",
    "UnitStep": "failed",
    "Membrane": "failed",
    "Spike": "inconclusive",
    "Flip": "inconclusive",
    "Chosen": "passed",
    "SummedAway": "inconclusive",
    "LossScale": "passed",
}


SLOW = extent(("CrossEntropyUnweighted", "Repeated", "Normalized", "Residual", "Membrane"), ())
"""What --all-seeds alone verifies."""

EXPECTED = {name: verdict for name, verdict in VERDICTS.items() if name not in SLOW}


def checked(here, file="functions.py"):
    ran = here("check", file, "--format", "json", **verdicts_only.VARIABLES)
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def verdicts(here, file="functions.py"):
    return {name: target["status"] for name, target in checked(here, file).items()}


@pytest.fixture(scope="module")
def here(place):
    here = place("inference")
    module = here.folder / "functions.py"
    lines = module.read_text().splitlines(keepends=True)
    for node in reversed(ast.parse("".join(lines)).body):
        if isinstance(node, ast.ClassDef) and node.name in SLOW:
            del lines[node.lineno - 1 : node.end_lineno]
    module.write_text("".join(lines))
    return here


@pytest.fixture(scope="module")
def drafted(here):
    """The spec as `init` writes it, and the verdicts before it was there."""
    before = checked(here)
    ran = here("init", "functions.py")
    assert ran.code == 0, ran.err
    return here, before, ran


def test_verdicts_without_a_spec(drafted):
    _, before, _ = drafted
    assert {name: target["status"] for name, target in before.items()} == EXPECTED
    checked = [t for t in before.values() if t["status"] != "unchecked"]
    assert {t["inputs"] for t in checked} == {"inferred"}


def test_the_drafted_spec_gives_the_same_verdicts(drafted):
    here, _, ran = drafted
    assert f"{len(EXPECTED)} functions" in ran.out
    assert verdicts(here) == EXPECTED
    text = (here.folder / "functions.gradverify.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=")
    assert re.search(r"^  Linear:$", text, re.MULTILINE)
    assert re.search(r"^  # PickedRows:$", text, re.MULTILINE)
    assert re.search(
        r"^      mean: \{shape: .*requires_grad: false\}  # backward returns None", text, re.MULTILINE
    )
    assert "tried x [4, 3], secret" in text
    assert re.search(r"^  # ClampSte is inconclusive: its gradient looks deliberate", text, re.MULTILINE)
    assert "reference: functions:attention_reference" in text


def test_sizes_differ_within_a_case_and_between_cases(drafted):
    _, before, _ = drafted
    assert before["Linear"]["cases"] > 1
    assert before["Linear"]["swept"]["sizes"] > 1


def test_what_counts_as_a_constant_is_said(drafted):
    _, before, _ = drafted
    (note,) = [f for f in before["Constant"]["findings"] if f["code"] == "GV107"]
    assert note["severity"] == "note"
    assert "counts as a constant" in note["message"] and "depends on it" in note["message"]


def test_what_was_guessed_is_said(drafted):
    _, before, _ = drafted
    messages = [f["message"] for f in before["PickedRows"]["findings"]]
    assert any("gradverify guessed `index` (integer tensor)" in m for m in messages)


def test_a_case_can_be_selected(place):
    here = place("inference")
    ran = here("check", "functions.py::Log[n=2,d=4]")
    assert (ran.code, ran.err) == (0, "")
    assert "1 case" in ran.out
    none = here("check", "functions.py::Log[n=17]")
    assert none.code == 2
    assert "n=17" in none.err


def test_init_keeps_what_is_there(place):
    here = place("inference")
    file = here.folder / "functions.gradverify.yaml"
    mine = (
        "gradverify: 1\nmodule: functions.py\n# mine\nfunctions:\n"
        "  Log: {inputs: {x: {shape: [n], range: [1, 2]}}}  # kept\n\n# the end\n"
    )
    file.write_text(mine)
    ran = here("init", "functions.py::Gated")
    assert (ran.code, ran.err) == (0, "")
    text = file.read_text()
    assert text.startswith(mine + "  Gated:")
    again = here("init", "functions.py::Gated")
    assert "nothing to add" in again.out
    assert file.read_text() == text


def test_init_replaces_with_force_alone_and_prints_with_stdout(place):
    here = place("inference")
    file = here.folder / "functions.gradverify.yaml"
    mine = "gradverify: 1\nmodule: functions.py\nfunctions:\n  Log: {skip: mine}\n"
    file.write_text(mine)
    shown = here("init", "functions.py::Log", "--stdout", "--force")
    assert "domain: positive" in shown.out and "skip" not in shown.out
    assert file.read_text() == mine
    assert here("init", "functions.py::Log", "--force").code == 0
    assert "domain: positive" in file.read_text()


def test_init_takes_one_module(place):
    here = place("inference")
    (here.folder / "broken.py").write_text(
        "import nothing_of_this_name\nfrom torch.autograd import Function\n"
    )
    ran = here("init", "broken.py")
    assert ran.code == 2
    assert "cannot be imported" in ran.err


def test_a_gradient_that_looks_deliberate_is_for_the_author_to_declare(drafted):
    _, before, _ = drafted
    for name, said in {
        "ClampSte": "its source says `ste`",
        "Spike": "forward is a step in `x`",
        "Flip": "forward returns `x` as it is",
    }.items():
        (finding,) = [f for f in before[name]["findings"] if f["code"] == "GV109"]
        assert said in finding["message"]
        assert "surrogate:" in finding["hint"] and finding["cause"] == "looks-surrogate"


def test_where_forward_is_constant_other_values_may_be_meant(drafted):
    _, before, _ = drafted
    (finding,) = [f for f in before["Bounded"]["findings"] if f["code"] == "GV109"]
    assert "but not with " in finding["message"] and "of `x`" in finding["hint"]


def test_what_runs_at_one_size_only_may_be_more_than_numbers(drafted):
    _, before, _ = drafted
    messages = [f["message"] for f in before["Act"]["findings"] if f["code"] == "GV109"]
    assert any("at no other size do forward and backward run" in m for m in messages)


def test_the_furthest_attempt_is_told_and_no_draft_repeats_it(place):
    here = place("inference")
    ran = here("check", "refused.py", "--format", "json")
    found = {t["name"]: t["findings"][0] for t in json.loads(ran.out)["targets"]}
    assert "no backend for this (after KeyError" in found["Late"]["message"]
    assert "{x: [...], w: [...]}" in found["Late"]["hint"]
    solved = "group: {process_group: world}, solver: {object: module:attribute}, y0: [...], method: {choices:"
    assert solved in found["Solved"]["hint"]
    assert "module 'torch' has no attribute 'gesv'" in found["Outdated"]["message"]


def test_what_calls_tell_is_in_the_spec(place):
    here = place("inference")
    found = {t["name"]: t for t in json.loads(here("check", "called.py", "--format", "json").out)["targets"]}
    assert found["Scaled"]["status"] == "failed"
    assert {f.get("input") for f in found["Scaled"]["findings"] if f["code"] == "GV101"} == {"weight"}
    assert found["Euler"]["status"] == "passed"


SIZED = {
    "UpperTriangles": ("passed", "x: [n, d, d]"),
    "UpperTrianglesUnscaled": ("failed", "x: [n, d, d]"),
    "Diagonals": ("passed", "x: [n, d, d]"),
    "Lattice": ("passed", "field: [n, n, n]"),
    "Rotation": ("passed", "d: [4, 6]"),
    "RotationUnsummed": ("failed", "d: [4, 6]"),
    "Turned": ("passed", "d: [2, 8]"),
    "Norms": ("passed", "d: [2, 8]"),
    "LeastSquares": ("passed", "rows: [4, 5], unknowns: [3, 4]"),
    "LeastSquaresUnsolved": ("failed", "rows: [4, 5], unknowns: [3, 4]"),
}
"""Verdicts, and what the drafted spec says of the sizes."""


def of_entries(drafted):
    """What a spec says, by target."""
    return {entry.partition(":")[0]: entry for entry in re.split(r"\n  (?=\w+:\n)", drafted)}


def test_sizes_are_what_forward_reshapes_to_and_has_cases_for(place):
    here = place("inference")
    assert verdicts(here, "sizes.py") == {name: status for name, (status, _) in SIZED.items()}
    entries = of_entries(here("init", "sizes.py", "--stdout").out)
    assert {name for name, (_, said) in SIZED.items() if said not in entries[name]} == set()


SPANS = {
    "ArcCosh": ("passed", "range: [1.1, 4.0]"),
    "ArcCoshUnrooted": ("failed", "range: [1.1, 4.0]"),
    "LogOfMinus": ("passed", "domain: negative"),
    "OtherSide": ("passed", "domain: unit"),
    "OtherSideUnsigned": ("failed", "range: [1.1, 4.0]"),
    "InBall": ("passed", "range: [-0.2, 0.2]"),
    "InBallOfMean": ("failed", "range: [-0.2, 0.2]"),
}
"""Verdicts, and what the drafted spec says of the values."""


def test_values_are_moved_to_where_forward_has_some(place):
    here = place("inference")
    expected = {name: status for name, (status, _) in SPANS.items()}
    assert verdicts(here, "spans.py") == expected
    drafted = here("init", "spans.py", "--stdout").out
    entries = of_entries(drafted)
    assert {name for name, (_, said) in SPANS.items() if said not in entries[name]} == set()
    (here.folder / "spans.gradverify.yaml").write_text(drafted)
    assert verdicts(here, "spans.py") == expected
