"""The sample reports, as a fixture: test modules are not importable from each other."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def samples():
    """Load `samples.py` from this folder."""
    spec = importlib.util.spec_from_file_location("report_samples", Path(__file__).with_name("samples.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
