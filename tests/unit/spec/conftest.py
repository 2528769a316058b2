"""What the tests of spec files share: a module to name, and a spec read from text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gradverify.errors import SpecError
from gradverify.model import Mistake, TargetPlan
from gradverify.spec.plan import plan_function
from gradverify.spec.read import SpecFile, read_spec

CODES = ("GV001", "GV101", "GV102", "GV201", "GV202", "GV411", "GV901")

MODULE = """
import torch
from torch.autograd import Function
from somewhere import Imported


class Linear(Function):
    @staticmethod
    def forward(ctx, input, weight, bias=None): ...

    @staticmethod
    def backward(ctx, grad): ...


class Gather(Function):
    @staticmethod
    def forward(x, index, mode): ...

    @staticmethod
    def setup_context(ctx, inputs, output): ...


class Stack(Function):
    @staticmethod
    def forward(ctx, dim, *xs): ...


class Old(Function):
    def forward(self, x, n): ...


class Derived(Linear):
    pass


def softmax(x, dim: int = -1, *rest, kept: "tuple[int, ...]" = ()): ...


def opaque(*args, **kwargs): ...


@torch.compile
def decorated(a): ...


free = opaque
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def read(folder: Path) -> Callable[..., SpecFile]:
    """Read a spec from text."""

    def read_text(text: str) -> SpecFile:
        path = folder / "spec.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return read_spec(path, shown_path="spec.yaml", known_codes=CODES)

    return read_text


@pytest.fixture
def problems(read) -> Callable[..., tuple[Mistake, ...]]:
    def problems_of(text: str) -> tuple[Mistake, ...]:
        with pytest.raises(SpecError) as caught:
            read(text)
        return caught.value.problems

    return problems_of


@pytest.fixture
def plan(read) -> Callable[[str], TargetPlan]:
    """Plan the only function, `free`, whose entry is given as the text below `free:`."""

    def plan_text(entry: str) -> TargetPlan:
        return plan_function(read(f"module: m.py\nfunctions: {{free: {entry}}}\n"), "free")

    return plan_text


@pytest.fixture
def complaints(problems) -> Callable[[str], list[str]]:
    """Return the messages about the only function, `free`."""

    def complaints_of(entry: str) -> list[str]:
        return [problem.message for problem in problems(f"module: m.py\nfunctions: {{free: {entry}}}\n")]

    return complaints_of
