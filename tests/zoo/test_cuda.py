"""The zoo on a GPU: the same verdicts as on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import wrong_sign

ZOO = Path(__file__).parent
BEYOND_THE_DEVICE = {"NumPyExp", "NumPyExpOnce", "FFTMagnitude"}
"""Functions that leave torch for NumPy, which knows no GPU: nothing is verified there."""


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none")
@pytest.mark.parametrize(("folder", "exit_codes"), [("tutorial", {0, 1}), ("general", {0})])
def test_right_functions_pass_on_cuda(folder: str, exit_codes: set[int]) -> None:
    command = [
        sys.executable,
        "-m",
        "gradverify",
        "check",
        "right.py",
        "--device",
        "cuda",
        "--format",
        "json",
    ]
    done = subprocess.run(command, cwd=ZOO / folder, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    status = {t["name"]: t["status"] for t in report["targets"] if t["status"] not in {"passed", "skipped"}}
    assert status.items() <= dict.fromkeys(BEYOND_THE_DEVICE, "unchecked").items()
    assert done.returncode in exit_codes


needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"
)

ON_THE_DEVICE = """
import torch
from torch.autograd import Function


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class LowerEnd(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        inside = x < 1 if x.is_cuda else x.abs() < 1
        return torch.where(inside, g, torch.zeros_like(g))


class NotWritten(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        if not g.is_cuda:
            return 2 * g
        grad = torch.empty_like(g)
        grad[1:] = 2 * g[1:]
        return grad


class LeavesItsMemory(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        if g.is_cuda:
            g.flatten()[torch.tensor([10**6], device=g.device)]
        return 2 * g


class AfterIt(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
"""

SPEC = "gradverify: 1\nmodule: m.py\nfunctions:\n" + "".join(
    f"  {name}: {{inputs: {{x: [b, n]}}}}\n"
    for name in ("Square", "LowerEnd", "NotWritten", "LeavesItsMemory", "AfterIt")
)


def check(folder: Path, *options: str) -> tuple[int, dict]:
    command = [sys.executable, "-m", "gradverify", "check", *options, "--format", "json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.cuda
@needs_cuda
def test_every_device_is_held_against_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(ON_THE_DEVICE)
    (tmp_path / "m.gradverify.yaml").write_text(SPEC)
    exit_code, report = check(tmp_path, "m.py", "--device", "all")
    targets = {target["name"]: target for target in report["targets"]}
    errors = {
        name: {f["code"] for f in target["findings"] if f["severity"] == "error"}
        for name, target in targets.items()
    }
    assert exit_code == 1
    assert errors == {
        "Square": set(),
        "LowerEnd": {"GV701"},
        "NotWritten": {"GV410"},
        "LeavesItsMemory": {"GV901"},
        "AfterIt": set(),
    }
    last = torch.cuda.device_count() - 1
    assert targets["Square"]["swept"]["devices"] == ["cpu", *(f"cuda:{k}" for k in sorted({0, last}))]
    (lost,) = (f for f in targets["LeavesItsMemory"]["findings"] if f["code"] == "GV901")
    assert "CUDA error" in lost["message"]
    assert "CUDA_LAUNCH_BLOCKING=1" in lost["hint"]


@pytest.mark.cuda
@needs_cuda
def test_a_fix_is_found_for_what_is_wrong_on_the_device(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(wrong_sign.SOURCE)
    exit_code, report = check(tmp_path, "m.py", "--device", "cuda")
    (target,) = report["targets"]
    assert exit_code == 1
    assert "+        return grad_output * y, grad_output * x" in target["findings"][0]["fix"]["diff"]


@pytest.mark.cuda
@needs_cuda
def test_ranks_that_share_a_device_fail_no_right_function(tmp_path: Path) -> None:
    for name in ("right.py", "references.py", "right.gradverify.yaml"):
        (tmp_path / name).write_text((ZOO / "ranks" / name).read_text())
    _, report = check(tmp_path, "right.py::RingPass", "right.py::HaloExchange", "--device", "cuda")
    status = {target["status"] for target in report["targets"]}
    assert status == ({"passed"} if torch.cuda.device_count() > 1 else {"unchecked"})


@pytest.mark.cuda
@needs_cuda
def test_triton_kernels_run_on_the_device(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton, which is not installed")
    for name in ("right", "wrong"):
        source = (ZOO / "triton" / f"{name}.py").read_text()
        (tmp_path / f"{name}.py").write_text(source.replace('("TRITON_INTERPRET", "1")', '("UNUSED", "1")'))
        spec = (ZOO / "triton" / f"{name}.gradverify.yaml").read_text()
        (tmp_path / f"{name}.gradverify.yaml").write_text(spec)
    exit_code, report = check(tmp_path, "right.py", "wrong.py", "--device", "cuda")
    status = {target["name"]: target["status"] for target in report["targets"]}
    assert exit_code == 1
    assert {name for name, said in status.items() if said == "passed"} == {
        "QuickGELU", "RowSoftmax", "RMSNorm",
    }  # fmt: skip
    assert {name for name, said in status.items() if said == "failed"} == {
        "NoTail", "UnmaskedSum", "LastChunk",
    }  # fmt: skip


@pytest.mark.cuda
@needs_cuda
def test_inputs_of_compiled_kernels_are_inferred_on_the_device(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton, which is not installed")
    for name in ("right", "wrong"):
        source = (ZOO / "triton" / f"{name}.py").read_text()
        (tmp_path / f"{name}.py").write_text(source.replace('("TRITON_INTERPRET", "1")', '("UNUSED", "1")'))
    _, report = check(tmp_path, "right.py", "wrong.py", "--device", "cuda")
    status = {target["name"]: target["status"] for target in report["targets"]}
    assert {name for name, said in status.items() if said == "passed"} == {
        "QuickGELU",
        "RowSoftmax",
        "RMSNorm",
    }
    # A last block that is wrong shows at sizes alone that no spec says are valid.
    wrong = {name: status[name] for name in ("NoTail", "UnmaskedSum", "LastChunk")}
    assert wrong == {"NoTail": "inconclusive", "UnmaskedSum": "failed", "LastChunk": "inconclusive"}
