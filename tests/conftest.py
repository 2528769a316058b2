"""What holds for all tests; `--all-seeds`, `--part` and `--function` say which of them run."""

import compileall
import os
import zlib
from pathlib import Path

import forked_command
import passed_before
import pytest

import gradverify
from gradverify.session import template

ALL_SEEDS = "GRADVERIFY_ALL_SEEDS"
"""The variable that `extent` reads, in the runners of xdist and in whatever tests start as well."""

LONG_LIST = Path(__file__).with_name("long_list.txt")

FIRST = ("cover/test_cover.py", "test_house.py::test_house", "test_verdicts.py::test_verdicts")
"""What takes longest runs first, so that at the end all runners have something to do."""


def pytest_addoption(parser):
    """Say how much of the tests is asked for."""
    ours = parser.getgroup("extent", "how much is tested")
    ours.addoption(
        "--all-seeds",
        action="store_true",
        help="the long list too: other seeds, no specs, private parts, sets of the benchmarks; "
        "what has passed on this revision is left out",
    )
    ours.addoption(
        "--part", metavar="I/N", type=_part, help="the Ith of N parts of the tests, the same ones each time"
    )
    ours.addoption(
        "--function",
        metavar="SET::NAME",
        action="append",
        default=[],
        help="of the cover these Functions alone (tests/cover/functions.txt); may be given again",
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
        record = passed_before.PassedBefore.of(config) if config.getoption("all_seeds") else None
        if record:
            config.pluginmanager.register(record, passed_before.FOLDER)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each runner tests that stand together: what a module prepares is prepared once, and not by all."""
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415 - where there are runners at all

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(trylast=True)  # syrupy first: a snapshot whose test was left out is not unused
def pytest_collection_modifyitems(config, items):
    """Keep what is asked for: a part by the name of each test, so that a new one moves no other."""
    lines = LONG_LIST.read_text("utf-8").splitlines()
    beginnings = tuple(f"tests/{line.split(' | ')[0]}" for line in lines if not line.startswith("#"))
    for item in items:
        if item.nodeid.startswith(beginnings):
            item.add_marker("long")
    items.sort(key=lambda item: not any(name in item.nodeid for name in FIRST))
    left_out = {item for item in items if not _is_asked_for(config, item)}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _is_asked_for(config, item):
    if not config.getoption("all_seeds") and item.get_closest_marker("long"):
        return False
    part, parts = config.getoption("part") or (1, 1)
    return zlib.crc32(item.nodeid.encode()) % parts == part - 1 and item.nodeid not in _passed(config)


def _passed(config):
    if hasattr(config, "workerinput"):
        return frozenset(config.workerinput.get(passed_before.FOLDER, ()))
    record = config.pluginmanager.get_plugin(passed_before.FOLDER)
    return record.names if record else frozenset()
