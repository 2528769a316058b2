"""The rules of the house: lint, format, types and layers, each shown in full where it is broken."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKS = {
    "ruff check": ("-m", "ruff", "check", "--no-cache", "."),
    "ruff format": ("-m", "ruff", "format", "--no-cache", "--check", "."),
    "mypy": ("-m", "mypy"),
    "layers": (
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-cache",
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_house(name):
    ran = subprocess.run(
        [sys.executable, *CHECKS[name]], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert ran.returncode == 0, f"\n{ran.stdout}{ran.stderr}"


def test_numpy_is_no_dependency():
    """The interpreter of Triton alone has it: elsewhere a tensor's `.numpy()` raises where it is missing."""
    files = (ROOT / "gradverify").rglob("*.py")
    calling = [f.name for f in files if ".numpy()" in f.read_text("utf-8") and f.parent.name != "interpreter"]
    assert calling == []
