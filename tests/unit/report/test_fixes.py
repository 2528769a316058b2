"""Changes of backward as a diff that `git apply` takes, however near they are and however their file ends."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradverify.model import Finding, LinePatch, Severity, SourceChange
from gradverify.report.fixes import are_one_fix, patches_of, signed_lines, unified_diff


def patch(lines: list[str], line: int, count: int, added: tuple[str, ...], end: str) -> LinePatch:
    first, after = line - 1, line - 1 + count
    below = lines[after : after + 3]
    return LinePatch(
        "m.py",
        line,
        tuple(lines[first:after]),
        added,
        tuple(lines[max(0, first - 3) : first]),
        tuple(below),
        is_unterminated=not end and after + len(below) == len(lines),
    )


@settings(max_examples=40, deadline=None)
@given(
    places=st.sets(st.integers(1, 24), min_size=1, max_size=4),
    length=st.integers(24, 26),
    end=st.sampled_from(["", "\n"]),
    added=st.integers(0, 3),
)
def test_git_applies_the_diff(tmp_path_factory, places, length, end, added):
    folder = tmp_path_factory.mktemp("diff")
    lines = [f"line {number}" for number in range(1, length + 1)]
    (folder / "m.py").write_text("\n".join(lines) + end)
    new = tuple(f"    new {k}" for k in range(added))
    patches = [patch(lines, place, 1, new, end) for place in sorted(places)]
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    done = subprocess.run(
        ["git", "apply", "-"],
        input=unified_diff(patches).encode(),
        cwd=folder,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = [one for k, line in enumerate(lines, 1) for one in (new if k in places else (line,))]
    assert (folder / "m.py").read_text().splitlines() == expected


def finding(*patches: LinePatch) -> Finding:
    changes = tuple(SourceChange("m.py", p.line, "", "", p) for p in patches)
    return Finding("GV101", Severity.ERROR, "", changes=changes)


def test_findings_of_one_mistake_have_one_fix():
    one, two = LinePatch("m.py", 3, ("a",), ("b",)), LinePatch("m.py", 3, ("a",), ("b",), points=2)
    assert len(patches_of([finding(one), finding(two)])) == 1
    assert are_one_fix(patches_of([finding(one), finding(two)]))


@pytest.mark.parametrize(
    ("other", "agree"),
    [
        (LinePatch("m.py", 3, ("a",), ("c",)), False),
        (LinePatch("m.py", 4, ("d",), ("c",)), True),
        (LinePatch("m.py", 2, ("z", "a"), ("c",)), False),
        (LinePatch("n.py", 3, ("a",), ("c",)), True),
    ],
)
def test_changes_of_one_place_that_differ_are_no_fix(other, agree):
    assert are_one_fix(patches_of([finding(LinePatch("m.py", 3, ("a",), ("b",))), finding(other)])) is agree


def test_no_change_is_no_fix():
    assert not are_one_fix([])


def test_lines_are_shown_without_the_indentation_that_they_share():
    shown = signed_lines(LinePatch("m.py", 3, ("        if a:", "            b"), ("        c",)))
    assert shown == ["- if a:", "-     b", "+ c"]
