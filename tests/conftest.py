"""What holds for all tests; `--all-seeds` and `--part` say how many of them there are."""

import compileall
import os
import zlib
from pathlib import Path

import forked_command
import pytest

import gradverify
from gradverify.session import template

ALL_SEEDS = "GRADVERIFY_ALL_SEEDS"
"""The variable that `extent` reads, in the runners of xdist and in whatever tests start as well."""

FIRST = "test_verdicts.py::test_verdicts"
"""What takes longest stands first, so that at the end all runners have something to do."""


def pytest_addoption(parser):
    """Say how much of the tests is asked for."""
    ours = parser.getgroup("extent", "how much is tested")
    ours.addoption(
        "--all-seeds", action="store_true", help="everything: other seeds, no specs, the sets of benchmarks"
    )
    ours.addoption(
        "--part", metavar="I/N", type=_part, help="the Ith of N parts of the tests, the same ones each time"
    )


def _part(text):
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def pytest_configure(config):
    """Compile the package once: a test that starts a process would else wait for all of it, every time.

    Where PYTHONDONTWRITEBYTECODE is set, nobody else does.
    """
    # The runners of xdist take the cores: a thread for each core in every one of them would only wait.
    os.environ.update(template.ONE_THREAD)
    template.begun = forked_command.begun
    if config.getoption("all_seeds"):
        os.environ[ALL_SEEDS] = "1"
    if not hasattr(config, "workerinput"):  # the workers of xdist start when this is done
        compileall.compile_dir(Path(gradverify.__file__).parent, quiet=2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each runner tests that stand together: what a module prepares is prepared once, and not by all."""
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415 - where there are runners at all

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(config, items):
    """Keep the part that is asked for: by the name of each test, so that a new one moves no other."""
    items.sort(key=lambda item: FIRST not in item.nodeid)
    if config.getoption("part") is None:
        return
    part, parts = config.getoption("part")
    others = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts != part - 1]
    kept = set(items).difference(others)
    items[:] = [item for item in items if item in kept]
    config.hook.pytest_deselected(items=others)
