"""Cases past constants of the source, through the command: what is no threshold, what values explain."""

from __future__ import annotations

import json
import re

import forked_command

from gradverify.cases.sizes import parse_condition

MODULE = """
import torch


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if x.shape[0] % 2:
            raise ValueError("pairs")
        return torch.stack([x[:, i] * x[:, i] for i in range(3)], 1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        d = torch.empty_like(x)
        for i in range(3):
            d[:, i] = 2 * g[:, i] * x[:, i]
        return d


class Rare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.cat([part * part for part in x.split(64)])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x * torch.where((x > 1.5) & (x < 1.65), 2, 1)


class Tail(Rare):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = x.shape[0]
        return 2 * g * x * (torch.arange(n) < max(n // 64 * 64, 64))

class Largest(torch.autograd.Function):
    # Where it was is kept in a byte.

    @staticmethod
    def forward(ctx, x):
        y, where = x.max(-1)
        ctx.save_for_backward(where.to(torch.uint8))
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx, g):
        (where,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, where.long()[..., None], g[..., None])

class Signs(torch.autograd.Function):
    # A byte for each entry is right at every size.

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward((x > 0).byte())
        return x.relu()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

class Centred(torch.autograd.Function):
    # Right for odd kernels alone.

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.nn.functional.conv1d(x[:, None], w[None, None], padding=w.shape[0] // 2)[:, 0]

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        p = w.shape[0] // 2
        back = torch.nn.functional.conv1d(g[:, None], w.flip(0)[None, None], padding=p)[:, 0]
        windows = torch.nn.functional.pad(x, (p, p)).unfold(1, w.shape[0], 1)
        return back[:, : x.shape[1]], torch.einsum("bhk,bh->k", windows, g)
"""

SPEC = """
gradverify: 1
module: m.py
functions:
  Turned: {sizes: {n: 2}, inputs: {x: [n, 3]}}
  Rare: {sizes: {n: 5}, inputs: {x: {shape: [n], range: [-2, 2]}}}
  Tail: {sizes: {n: 5}, inputs: {x: {shape: [n], range: [-2, 2]}}}
  Largest: {sizes: {m: 8, n: 5}, inputs: {x: [m, n]}}
  Signs: {sizes: {m: 2, n: 5}, inputs: {x: [m, n]}}
  Centred: {sizes: {b: 2, h: [6, 5], k: [3, 1]}, inputs: {x: [b, h], w: [k]}}
"""


def test_past_constants(tmp_path):
    (tmp_path / "m.py").write_text(MODULE)
    (tmp_path / "m.gradverify.yaml").write_text(SPEC.lstrip())
    ran = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    targets = {t["name"]: t for t in json.loads(ran.out)["targets"]}
    # A loop over a fixed axis is no threshold of another size, which forward refuses for its own reason.
    assert targets["Turned"]["status"] == "passed"
    assert not targets["Turned"]["swept"]["not_past"]
    # What a rare value explains is wrong at the declared size as well.
    (found,) = targets["Rare"]["findings"]
    assert (found["code"], found["severity"], found["case"]["id"]) == ("GV101", "error", "n=5")
    # What the size explains is reported as before.
    (found,) = targets["Tail"]["findings"]
    assert (found["code"], targets["Tail"]["status"]) == ("GV109", "inconclusive")
    assert "no spec says that n=65, just past 64" in found["message"]
    assert "list such a value of `n` " in found["hint"] and "as in `n != 65`" in found["hint"]
    # What a narrow integer counts to is a constant of the source.
    (found,) = targets["Largest"]["findings"]
    assert (found["code"], targets["Largest"]["status"]) == ("GV109", "inconclusive")
    assert "at indices in uint8 = 256 is valid" in found["message"]
    assert targets["Signs"]["status"] == "passed" and not targets["Signs"]["swept"]["not_past"]
    # The condition that is proposed allows what is listed, not what was tried.
    (found,) = targets["Centred"]["findings"]
    assert found["code"] == "GV109"
    conditions = [parse_condition(text) for text in re.findall(r"`([^`]+ [<>!]=[^`]+)`", found["hint"])]
    listed = [{"b": 2, "h": h, "k": k} for h in (6, 5) for k in (3, 1)]
    assert conditions and all(c.holds(sizes) for c in conditions for sizes in listed)
    assert not any(c.holds(found["case"]["sizes"]) for c in conditions)
    assert "`k`" in found["hint"] and any(c.names == ("k",) for c in conditions)
