"""What holds for all tests."""

import compileall
import os
from pathlib import Path

import forked_command
import pytest

import gradverify
from gradverify.session import template


def pytest_configure(config):
    """Compile the package once: a test that starts a process would else wait for all of it, every time.

    Where PYTHONDONTWRITEBYTECODE is set, nobody else does.
    """
    # The runners of xdist take the cores: a thread for each core in every one of them would only wait.
    os.environ.update(template.ONE_THREAD)
    template.begun = forked_command.begun
    if not hasattr(config, "workerinput"):  # the workers of xdist start when this is done
        compileall.compile_dir(Path(gradverify.__file__).parent, quiet=2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each runner tests that stand together: what a module prepares is prepared once, and not by all."""
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415 - where there are runners at all

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None
