"""Whole screens with their exit codes: what a user sees, in one file each under `__snapshots__`."""

import pytest
from extent import with_long

SCREENS = {
    "all pass": (0, "check", "right.py"),
    "one mismatch": (1, "check", "wrong.py::Product"),
    "backward raises": (1, "check", "wrong.py::Raises"),
    "inconclusive": (1, "check", "wrong.py::Noisy"),
    "expected, skipped and unchecked": (1, "check", "statuses.py"),
    "import failure among good modules": (2, "check", "broken.py", "right.py"),
    "list": (0, "list", "right.py"),
    "demo": (0, "demo"),
    "nothing discovered": (5, "check", "nothing.py"),
    "spec error": (2, "check", "right.py", "--spec", "mistaken.yaml"),
    "explain": (0, "explain", "GV101"),
    "rules": (0, "rules"),
    "version": (0, "--version"),
    "help": (0, "--help"),
    "check help": (0, "check", "--help"),
    "no command": (2,),
}
CRASHES = {
    "crash": (1, "check", "crashing.py", "-k", "SegfaultInForward or Before"),
    "timeout": (1, "check", "hanging.py", "-k", "HoldsTheInterpreter or Double", "--timeout", "2"),
}


@pytest.mark.parametrize("name", SCREENS)
def test_screen(place, screen, name):
    here = place("screens")
    code, *arguments = SCREENS[name]
    ran = here(*arguments)
    assert ran.code == code, ran.err
    assert ran.screen(here.folder) == screen


@pytest.mark.parametrize("name", with_long(["crash"], ["timeout"]))
def test_screen_of_a_crash(place, screen, name):
    here = place()
    code, *arguments = CRASHES[name]
    ran = here(*arguments)
    assert ran.code == code, ran.err
    assert ran.screen(here.folder) == screen
