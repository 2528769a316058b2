"""Which integers of a source a size may be held against."""

from __future__ import annotations

import pytest

from gradverify.source import size_constants

MODULE = """
import torch, triton
import triton.language as tl

BLOCK = 1 << 7
UNUSED = 77
WIDTH: tl.constexpr = tl.constexpr(2 * 16)

def kernel(x_ptr, n, LANES=4, groups=24, dim=1):
    for i in range(0, n, WIDTH):
        tl.arange(0, 512)

def helper(x):
    return x[:96] + x[i:i+11]

class Outer(torch.autograd.Function):
    CHUNK = 12

    @staticmethod
    def forward(ctx, x):
        if x.dim() > 3 or x.shape[0] == 9 or len(x.shape) > 5:
            raise ValueError
        y = kernel[(1,)](x, STAGES=2, num_warps=8, BLOCK=BLOCK)
        return helper(x) if x.numel() > 300 else y.split(40), 1000 * x

class Other(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[:33], triton.next_power_of_2(x.numel())

call = Other.apply
"""


def test_constants_of_a_target_and_of_what_it_uses() -> None:
    found = {str(c) for c in size_constants(MODULE, "Outer")}
    assert found == {
        "STAGES = 2", "LANES = 4", "11 (line 14)", "CHUNK = 12", "groups = 24", "WIDTH = 32", "40 (line 24)",
        "96 (line 14)", "BLOCK = 128", "300 (line 24)", "512 (line 11)", "9 (line 21)",
    }  # fmt: skip


@pytest.mark.parametrize("kept, found", [
    ("x.argmax(-1).to(torch.uint8)", "indices in uint8 = 256"),
    ("torch.zeros(n, dtype=torch.int8)", "indices in int8 = 128"),
    ("x.argmax(-1).byte()", "indices in byte = 256"),
    ("x.long(), byte(x), x.dtype == torch.uint8", ""),
])  # fmt: skip
def test_what_narrow_integers_count_to(kept: str, found: str) -> None:
    constants = size_constants(f"import torch\ndef f(x, n):\n    return {kept}\n", "f")
    assert [str(c) for c in constants] == [found] * bool(found)


@pytest.mark.parametrize("name", ["Other", "call"])
def test_a_target_bound_by_another_name(name: str) -> None:
    assert [str(c) for c in size_constants(MODULE, name)] == ["a power of 2", "33 (line 29)"]


def test_a_source_that_cannot_be_read_has_none() -> None:
    assert size_constants("def (", "f") == ()
    assert size_constants(MODULE, "missing") == ()


def test_a_constant_in_a_tuple() -> None:
    found = size_constants("def call(x):\n    y, step = f(x), 32\n    return y\n", "call")
    assert [str(c) for c in found] == ["step = 32"]


@pytest.mark.parametrize(
    ("loop", "values"),
    [
        ("for _ in range(50):\n        x = x - f(x)", []),
        ("for i in range(50):\n        x = x - f(x)", []),
        ("for i in range(50):\n        x = x - f(x, i)", [50]),
        ("for _ in range(50):\n        x = f(x)\n        at += 8", [50]),
        ("for _ in range(0, n, 50):\n        x = f(x)", [50]),
        ("for _ in range(50):\n        x = x[:64]", [64]),
    ],
)
def test_a_number_of_rounds_is_no_size(loop: str, values: list[int]) -> None:
    found = size_constants(f"def call(x, at, n):\n    {loop}\n    return x\n", "call")
    assert [c.value for c in found] == values


def test_what_a_counter_is_held_against_is_a_size():
    source = (
        "def f(x):\n    for t in range(len(x)):\n        if t == 64 or x.shape[0] == 9:\n            break\n"
    )
    assert [str(c) for c in size_constants(source, "f")] == ["9 (line 3)", "64 (line 3)"]


@pytest.mark.parametrize(
    ("expression", "block"),
    [
        ("n >> 5 << 5", 32),
        ("n & 63", 64),
        ("31 & n", 32),
        ("n & ~15", 16),
        ("n & -8", 8),
        ("divmod(n, 48)", 48),
    ],
)
def test_blocks_by_shift_and_mask(expression: str, block: int) -> None:
    assert [c.value for c in size_constants(f"def f(n):\n    return {expression}\n", "f")] == [block]


@pytest.mark.parametrize("expression", ["n & 12", "n & 0", "n >> 40", "n & 0xFFFFFFFF", "mask & other"])
def test_hashes_and_flags_are_no_blocks(expression: str) -> None:
    assert size_constants(f"def f(n, mask, other):\n    return {expression}\n", "f") == ()


def test_blocks_of_a_table() -> None:
    found = size_constants("BLOCKS = {32: 64, 64: 48, 1: 2}\n\ndef f(x):\n    return BLOCKS[x]\n", "f")
    assert [str(c) for c in found] == ["BLOCKS = 48", "BLOCKS = 64"]


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("def f(x):\n    return x if x.shape[-1] == 64 else 2 * x\n", [64]),
        ("def f(x):\n    return x if x.shape[-1] in (32, 48) else 2 * x\n", [32, 48]),
        ("SIZES = {32, 48}\ndef f(x):\n    return x if x.shape[-1] in SIZES else 2 * x\n", [32, 48]),
        ("def f(x, mode):\n    return x if mode == 2 or x.dim() == 5 else 2 * x\n", []),
    ],
)
def test_what_a_size_is_equal_to_is_a_constant(source: str, values: list[int]) -> None:
    assert [c.value for c in size_constants(source, "f")] == values


def test_constants_of_the_own_package_count(tmp_path):
    package = tmp_path / "pkg"
    (package / "inner").mkdir(parents=True)
    for folder in (package, package / "inner"):
        (folder / "__init__.py").write_text("")
    (package / "constants.py").write_text("HEAD = 40\nUNUSED = 41\n")
    (package / "starred.py").write_text("def cut(x):\n    return x[:77]\n")
    (package / "inner" / "kernels.py").write_text(
        "from ..constants import HEAD\nfrom pkg import starred\n"
        "def back(x):\n    return starred.cut(x) if x.shape[0] == HEAD else x\n"
        "def other(x):\n    return x[:99]\n"
    )
    module = package / "m.py"
    module.write_text(
        "import math\nfrom .inner.kernels import back\ndef f(x):\n    return back(x) % math.pi\n"
    )
    found = size_constants(module.read_text(), "f", module)
    assert [str(c) for c in found] == ["HEAD = 40", "77 (starred.py, line 2)"]
    assert size_constants(module.read_text(), "f") == ()


def test_constants_of_a_module_beside_a_lone_file_count(tmp_path):
    (tmp_path / "helpers.py").write_text("HEAD = 40\ndef g(x):\n    return x[:HEAD]\n")
    (tmp_path / "m.py").write_text("import helpers as h\ndef f(x):\n    return h.g(x)\n")
    found = size_constants((tmp_path / "m.py").read_text(), "f", tmp_path / "m.py")
    assert [str(c) for c in found] == ["HEAD = 40"]


@pytest.mark.parametrize(("calls", "read", "found"), [
    ("f(x, -1)", "axis % 5 == 4", []),
    ("f(x, axis=2), f(x, 1)", "axis > 8", []),
    ("f(x, -1)", "x.shape[axis] > 64", ["64 (line 2)"]),
    ("f(x, -1), f(x, x.shape[0])", "axis > 64", ["64 (line 2)"]),
    ("f(x, size)", "axis > 64", ["64 (line 2)"]),
    ("f", "axis > 64", ["64 (line 2)"]),
])  # fmt: skip
def test_a_parameter_always_given_a_number_is_no_size(calls: str, read: str, found: list[str]) -> None:
    source = f"def f(x, axis):\n    return {read}\ndef target(x):\n    return {calls}\n"
    assert [str(c) for c in size_constants(source, "target")] == found


def test_a_parameter_that_becomes_a_size_is_one() -> None:
    source = "def f(x, n):\n    n = x.shape[0]\n    return n > 64\ndef target(x):\n    return f(x, 1)\n"
    assert [str(c) for c in size_constants(source, "target")] == ["64 (line 3)"]


@pytest.mark.parametrize(("body", "kept"), [("w(x)", False), ("x[:rounds]", True)])
def test_rounds_of_a_loop_are_no_size(body: str, kept: bool) -> None:
    source = f"def f(x, rounds=300):\n    for _ in range(rounds):\n        x = {body}\n    return x\n"
    assert ("rounds = 300" in {str(c) for c in size_constants(source, "f")}) is kept


@pytest.mark.parametrize(("folder", "found"), [("src", {"BLOCK", "RETRIES"}), ("site-packages", {"BLOCK"})])
def test_what_is_installed_beside_a_package_is_not_its_own(tmp_path, folder, found):
    mine, theirs = (tmp_path / folder / name for name in ("mine", "theirs"))
    for package in (mine, theirs):
        package.mkdir(parents=True)
    (mine / "__init__.py").write_text("")
    (theirs / "__init__.py").write_text("RETRIES = 10\ndef run(f): return f(RETRIES)\n")
    text = "from theirs import run\nBLOCK = 64\ndef forward(ctx, x): return run(x[:BLOCK])\n"
    (mine / "ops.py").write_text(text)
    assert {c.name for c in size_constants(text, "forward", mine / "ops.py")} == found
