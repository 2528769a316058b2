"""The maps, as a fixture and as parameters: test modules are not importable from each other."""

import importlib.util
import os
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("numerics_maps", Path(__file__).with_name("maps.py"))
MAPS = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(MAPS)

TABLES = {
    "smooth": MAPS.SMOOTH | MAPS.SEVERAL,
    "hard": MAPS.HARD,
    "right": MAPS.SMOOTH | MAPS.SEVERAL | MAPS.HARD,
    "kinked": MAPS.KINKS,
    "jumping": MAPS.JUMPS,
}


@pytest.fixture(scope="session")
def maps():
    """The module of maps."""
    return MAPS


@pytest.fixture
def seeds():
    """The draws of each map; more in a longer sweep, `GRADVERIFY_SEEDS=100 pytest tests/unit/numerics`."""
    from extent import extent  # noqa: PLC0415 - this file may be loaded before options are read

    return range(int(os.environ.get("GRADVERIFY_SEEDS", str(extent(1, 3)))))


def pytest_generate_tests(metafunc):
    """Give a test that asks for an entry of a table each of them."""
    for name, table in TABLES.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, list(table.values()), ids=list(table))


@pytest.fixture(scope="session")
def maps_once():
    """The same, for properties: hypothesis wants nothing that is made anew for each test function."""
    return MAPS
