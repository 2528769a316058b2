"""Which tests run: parts share them out, the long list is left out, what has passed does not run again."""

import re
from pathlib import Path

import forked_command

ROOT = Path(__file__).parents[2]


def collected(*options):
    asked = ["-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests/unit/test_rules.py"]
    ran = forked_command.python([*asked, *options], ROOT)
    assert ran.code == 0, ran.out + ran.err
    return [line for line in ran.out.splitlines() if "::" in line]


def test_lines_of_the_long_list_name_tests():
    lines = (ROOT / "tests" / "long_list.txt").read_text("utf-8").splitlines()
    named = [line.split(" | ")[0] for line in lines if not line.startswith("#")]
    assert named
    assert not [name for name in named if not (ROOT / "tests" / name.partition("::")[0]).exists()]


def test_the_test_command_leaves_the_long_list_out():
    asked = ["-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests/unit/ranks"]
    assert "no tests collected" in forked_command.python(asked, ROOT).out


def test_the_long_list_goes_on_where_it_stopped(tmp_path):
    asked = ["-m", "pytest", "-q", "--all-seeds", "-o", f"cache_dir={tmp_path}", "tests/unit/test_rules.py"]
    first = forked_command.python([*asked, "-k", "page"], ROOT)
    assert re.search(r"^[1-9]\d* passed", first.out, re.MULTILINE), first.out
    again = forked_command.python([*asked, "-k", "page"], ROOT)
    assert again.code == 0
    assert re.search(r"^[1-9]\d* deselected", again.out, re.MULTILINE), again.out


def test_parts_share_all_tests_out():
    first, second = (collected("--part", part) for part in ("1/2", "2/2"))
    assert first
    assert second
    assert sorted(first + second) == sorted(collected())
