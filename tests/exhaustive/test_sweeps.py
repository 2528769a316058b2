"""Tests of the short suite with all of their draws and examples."""

from pathlib import Path

import forked_command
import pytest

ROOT = Path(__file__).parents[2]

LIMIT = 7200
"""Seconds for one part on a busy machine."""

PARTS = (
    "tests/cli/test_compiled.py",
    "tests/cli/test_constants.py",
    "tests/cli/test_inference.py",
    "tests/cli/test_pytest_plugin.py",
    "tests/cli/test_ranks.py",
    "tests/cli/test_suggest.py",
    "tests/cli/test_terminal_screens.py",
    "tests/unit/diagnose/test_causes.py",
    "tests/unit/diagnose/test_edits.py",
    "tests/unit/numerics/test_proof.py",
    "tests/unit/numerics/test_large.py",
    "tests/unit/numerics/test_planted.py",
    "tests/unit/numerics/test_column_compression.py",
    "tests/unit/numerics/test_verdicts.py",
    "tests/unit/report/test_injection.py",
    "tests/unit/spec/test_fuzz.py",
    "tests/unit/spec/test_pairwise.py",
    "tests/unit/spec/test_sweep.py",
    "tests/zoo/test_devices.py",
)


@pytest.mark.parametrize("part", PARTS)
def test_all_of_it(part):
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", part]
    ran = forked_command.python(
        words, ROOT, forked_command.plain_environment(GRADVERIFY_EXHAUSTIVE="1"), limit=LIMIT
    )
    assert ran.code == 0, ran.out + ran.err


def test_a_part_is_one_that_sweeps_more():
    assert {part for part in PARTS if (ROOT / part).read_text().find("extent") < 0} <= {
        # by the draws of `tests/unit/numerics/conftest.py`
        "tests/unit/numerics/test_verdicts.py",
    }
