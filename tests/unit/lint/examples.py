"""For every static rule Functions that it must speak of, and right ones that it must leave alone.

Each is the body of a class; what is not about the rule is kept right, so that no other rule speaks.
"""

FORWARD = """
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w
"""
BACKWARD = """
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x
"""
UNPACK = """
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
"""


def of(backward: str, forward: str = FORWARD) -> str:
    return (
        forward
        + "\n    @staticmethod\n    def backward(ctx, g):\n        "
        + backward.replace("\n", "\n        ")
    )


def once(body: str) -> str:
    """The same, marked as differentiable once."""
    return body.replace(
        "@staticmethod\n    def backward", "@staticmethod\n    @once_differentiable\n    def backward"
    )


def started(body: str) -> str:
    """A forward of (x, w) with this body."""
    return "\n    @staticmethod\n    def forward(ctx, x, w):\n        " + body.replace("\n", "\n        ")


UNPACKED = "x, w = ctx.saved_tensors\n"
RETURN = "return g * w, g * x"

WRONG = {
    "GV803": [
        of("return g"),
        of("return None if g is None else g * 2"),
        of(UNPACKED + "if x.requires_grad:\n    return g * w, g * x\nreturn g * w, g * x, g"),
        of(UNPACKED + "grads = (g * w, g * x) + (g,) * 2\nreturn grads"),
        of(UNPACKED + "if not ctx.needs_input_grad[0]:\n    return None\n" + RETURN),
        "\n    @staticmethod\n    def forward(x, n):\n        return x * n\n\n    @staticmethod\n"
        "    def setup_context(ctx, inputs, output):\n        ctx.n = inputs[1]\n"
        + of("return g * ctx.n", ""),
    ],
    "GV809": [
        of(UNPACKED + "flat = g.view(-1)\nreturn flat.view(x.shape) * w, g * x"),
        of(UNPACKED + "rows = g.view(-1, 3)\nreturn rows.view(x.shape) * w, g * x"),
        once(of(UNPACKED + "out = library.run(g.data_ptr(), w.data_ptr())\nreturn out, g * x")),
        of(UNPACKED + "out = torch.empty_like(x)\nkernel[(4,)](g, w, out, 4)\nreturn out, g * x").replace(
            "@staticmethod\n    def backward", "@staticmethod\n    @once_differentiable\n    def backward"
        ),
    ],
    "GV811": [
        started("x.mul_(2)\nctx.save_for_backward(x, w)\nreturn x * w") + BACKWARD,
        started("x += 1\nctx.save_for_backward(x, w)\nreturn x * w") + BACKWARD,
        started("flat = x.view(-1)\nflat[0] = 0\nctx.save_for_backward(x, w)\nreturn x * w") + BACKWARD,
        started("x.data[0] = 0\nctx.save_for_backward(x, w)\nreturn x * w") + BACKWARD,
    ],
    "GV812": [
        of(UNPACKED + "return g * w * ctx.scale, g * x"),
        of("x, w = ctx.saved_tensor\n" + RETURN),
        "\n    factor = 2\n" + of(UNPACKED + "return g * w * ctx.factor, g * x"),
        "\n    def __init__(self):\n        self.n = 2\n" + of(UNPACKED + "return g * w * ctx.n, g * x"),
    ],
    "GV813": [
        started("return x * w") + BACKWARD,
        started("ctx.save_for_backward(x)\nreturn x * w") + BACKWARD,
        of("return g * ctx.saved_tensors[2], g * ctx.saved_tensors[0]"),
        of("x, w, *rest, last = ctx.saved_tensors\n" + RETURN),
    ],
    "GV814": [
        started("ctx.save_for_backward(x, w)\nreturn x * w, x + w") + BACKWARD,
        FORWARD.replace("return x * w", "return x * w, x, w") + BACKWARD.replace("(ctx, g)", "(ctx, g, g2)"),
    ],
    "GV816": [
        started("Example.calls += 1\nctx.save_for_backward(x, w)\nreturn x * w") + BACKWARD,
        started("CACHE[x.shape] = w\nctx.save_for_backward(x, w)\nreturn x * w") + BACKWARD,
        started("global LAST\nLAST = 1\nctx.save_for_backward(x, w)\nreturn x * w") + BACKWARD,
        of(UNPACKED + "LOG.append(g)\n" + RETURN),
        of(UNPACKED + "torch.equal = None\n" + RETURN),
        of(UNPACKED + "setattr(Example, 'last', 1)\n" + RETURN),
        of(UNPACKED + "remember(1)\n" + RETURN),
        of(UNPACKED + "import os\nif os.environ.get('CHECKED'):\n    g = 1 * g\n" + RETURN),
        of(UNPACKED + "import sys\ncaller = sys._getframe(1)\n" + RETURN),
    ],
    "GV817": [
        of(
            UNPACKED + "with torch.enable_grad():\n    a = x.detach().requires_grad_()\n    y = a * w\n"
            "return torch.autograd.grad(y, a, g)[0], g * x"
        ),
        of(UNPACKED + "y = x * w\ny.backward(g)\nreturn x.grad, g * x"),
    ],
}
"""By code: each gives that code, and nothing else but GV806."""

SETUP = """
    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w = inputs
        ctx.save_for_backward(x, w)
        ctx.scale = 2
"""

RIGHT = {
    "GV803": [
        of("return helper(g)"),
        of("grads = [g, g]\nreturn tuple(grads)"),
        of("return (g, *[None] * 1)"),
        of("return g, g, None, None"),
        of("return g * 2, *rest(g)"),
        FORWARD.replace("x, w):", "x, *w):").replace("x, w)", "x, *w)")
        + of("return g", "").replace("    x", "    x"),
        FORWARD.replace("(ctx, x, w)", "(ctx, x, w=None)") + of("return g", ""),
        of("return None"),
        of("raise NotImplementedError"),
    ],
    "GV809": [
        of(UNPACKED + "g = g.contiguous()\nflat = g.view(-1)\nreturn flat.view(x.shape) * w, g * x"),
        of(UNPACKED + "return g.view(x.shape) * w, g.reshape(-1).view(x.shape) * x"),
        of(UNPACKED + "return g.view(-1, 1).squeeze(1) * w, g * x"),
        of(UNPACKED + "same = g.data_ptr() == x.data_ptr()\nreturn g * w, g * x * same"),
        of(UNPACKED + "out = library.run(g.data_ptr(), x.data_ptr(), g.stride(0))\nreturn out, g * x"),
        of(UNPACKED + "known = seen.pop(g.data_ptr(), None)\nreturn g * w, g * x"),
    ],
    "GV811": [
        started("x.mul_(2)\nctx.mark_dirty(x)\nctx.save_for_backward(w, w)\nreturn x") + BACKWARD,
        started("x = x.clone()\nx.mul_(2)\nctx.save_for_backward(x, w)\nreturn x * w") + BACKWARD,
        started("w.mul_(0.9).add_(0.1)\nctx.save_for_backward(x)\nreturn x * 2")
        + of("return g * 2, None", ""),
        started("y = x + 1\ny.mul_(2)\nctx.save_for_backward(x, w)\nreturn y * w") + BACKWARD,
    ],
    "GV812": [
        SETUP + of(UNPACKED + "return g * w * ctx.scale, g * x", ""),
        started("ctx.save_for_backward(x, w)\nsetattr(ctx, name, 2)\nreturn x * w")
        + of(UNPACKED + "return g * w * ctx.scale, g * x", ""),
        started("ctx.save_for_backward(x, w)\nremember(ctx, x)\nreturn x * w")
        + of(UNPACKED + "return g * w * ctx.scale, g * x", ""),
        of(UNPACKED + "scale = ctx.scale if hasattr(ctx, 'scale') else 1\nreturn g * w * scale, g * x"),
        started("ctx.a, ctx.b = 1, 2\nctx.save_for_backward(x, w)\nreturn x * w")
        + of(UNPACKED + "return g * w * ctx.b, g * x", ""),
    ],
    "GV813": [
        of("x, *rest = ctx.saved_tensors\nreturn g * x, g"),
        of("saved = ctx.saved_tensors\nreturn g * saved[1], g"),
        started(
            "if x.dim():\n    ctx.save_for_backward(x)\nelse:\n    ctx.save_for_backward(x, w)\nreturn x * w"
        )
        + BACKWARD,
        started("ctx.save_for_backward(*tensors)\nreturn x * w") + BACKWARD,
        started("Base.forward(ctx, x, w)\nreturn x * w") + BACKWARD,
        SETUP + BACKWARD,
    ],
    "GV814": [
        started("ctx.save_for_backward(x, w)\nreturn x * w, x + w")
        + BACKWARD.replace("(ctx, g)", "(ctx, g, h)"),
        started("ctx.save_for_backward(x, w)\nreturn x * w, x + w")
        + BACKWARD.replace("(ctx, g)", "(ctx, g, h=None)"),
        started("ctx.save_for_backward(x, w)\nreturn x * w, x + w")
        + BACKWARD.replace("(ctx, g)", "(ctx, g, *rest)"),
        started("ctx.save_for_backward(x, w)\nif x.dim():\n    return x * w\nreturn x * w, x + w") + BACKWARD,
    ],
    "GV816": [
        started(
            "seen = []\nseen.append(x)\nctx.seen = {}\nctx.seen['x'] = 1\nctx.scale = BLOCK\nreturn x * w"
        )
        + BACKWARD,
        started("x.grad_name = 1\nout = torch.add(x, w)\nout[0] = 1\nreturn out") + BACKWARD,
        of(UNPACKED + "out = launching(g, w)\nreturn out, g * x"),
    ],
    "GV817": [
        of(UNPACKED + "return Other.backward(ctx, g)"),
        of(UNPACKED + "with torch.enable_grad():\n    out = g * w\nreturn out, g * x"),
    ],
}
"""By code: none of these gives that code."""

AROUND = """\
import torch
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def launching(g, w):
    out = torch.empty_like(w)
    kernel[(4,)](g, w, out, 4)
    return out


def remember(value):
    KEPT.update(value=value)


class Example(Function):
"""


def module(body: str) -> str:
    return AROUND + body + "\n"
