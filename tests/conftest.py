"""What holds for all tests."""

import compileall
from pathlib import Path

import gradverify


def pytest_configure(config):
    """Compile the package once: a test that starts a process would else wait for all of it, every time.

    Where PYTHONDONTWRITEBYTECODE is set, nobody else does.
    """
    if not hasattr(config, "workerinput"):  # the workers of xdist start when this is done
        compileall.compile_dir(Path(gradverify.__file__).parent, quiet=2)
