"""`--engine torch`: torch's own verdict, told in our words; ours is the finer one."""

from __future__ import annotations

from pathlib import Path

import zoo

SOURCE = """
import torch
from torch.autograd import Function


class SlightlyOff(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x * (1 + 1e-5)
"""


def statuses(folder: Path, *arguments: str) -> dict[str, tuple[str, set[str]]]:
    _, report = zoo.checked(arguments, folder)
    return {
        t["name"]: (t["status"], {f["code"] for f in t["findings"] if f["severity"] == "error"})
        for t in report["targets"]
    }


def test_torch_gives_the_verdict_and_we_say_where() -> None:
    folder = Path(__file__).parent / "tutorial"
    selected = "LinearOnce or ReLU or NumPyExp or ProductSwapped"
    wrong = statuses(folder, "wrong.py", "-k", selected, "--engine", "torch")
    assert wrong["ProductSwapped"] == ("failed", {"GV101"})
    assert wrong["ReLU"] == ("failed", {"GV102"})
    assert wrong["NumPyExp"] == ("failed", {"GV202"})
    assert wrong["LinearOnceAveraged"] == ("failed", {"GV101"})


def test_torch_is_blind_below_its_tolerance(tmp_path: Path) -> None:
    (tmp_path / "slightly_off.py").write_text(SOURCE)
    assert statuses(tmp_path, "slightly_off.py", "--engine", "torch") == {"SlightlyOff": ("passed", set())}
    assert statuses(tmp_path, "slightly_off.py") == {"SlightlyOff": ("failed", {"GV101"})}
