"""What was asked for and could not run is not green, and a selection hides nothing of what is selected."""

from __future__ import annotations

import pytest
import zoo


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ("GV5", "the transforms were not judged"),
        ("GV404", "were not swept: the gradient is not verified"),
    ],
)
def test_what_could_not_run_without_a_verified_gradient_is_not_green(codes: str, said: str) -> None:
    done = zoo.command("check", "wrong.py::SegmentSum", "--select", codes, folder=zoo.ZOO / "contract")
    assert done.code == 1, done.err
    assert said in " ".join(done.out.split())


@pytest.mark.parametrize("asked", [["right.py", "--effort", "quick"], ["right.py::ByMode[mode=reuse]"]])
def test_a_selection_of_cases_hides_no_other_option(asked: list[str]) -> None:
    """A write that an option asks for is told by its other values, which are not run then."""
    code, report = zoo.checked(asked, zoo.ZOO / "calls")
    assert (code, {t["status"] for t in report["targets"]}) == (0, {"passed"})
