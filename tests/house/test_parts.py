"""`--part I/N`: together the parts are all tests, and no test is in two of them."""

from pathlib import Path

import forked_command

ROOT = Path(__file__).parents[2]


def collected(*options):
    asked = ["-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests/unit/test_rules.py"]
    ran = forked_command.python([*asked, *options], ROOT)
    assert ran.code == 0, ran.out + ran.err
    return [line for line in ran.out.splitlines() if "::" in line]


def test_parts_share_all_tests_out():
    first, second = (collected("--part", part) for part in ("1/2", "2/2"))
    assert first
    assert second
    assert sorted(first + second) == sorted(collected())
