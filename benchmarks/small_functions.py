"""Modules of small autograd Functions, their specs, and the script of plain torch that checks the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

SCRIPT = "with_torch.py"

HEAD = "import torch\nfrom torch.autograd import Function\n"
FUNCTION = """

class {name}(Function):
    @staticmethod
    def forward(ctx, {inputs}):
        ctx.save_for_backward({inputs})
        return {forward}

    @staticmethod
    def backward(ctx, g):
        {inputs}{comma} = ctx.saved_tensors
{local}        return {gradients}
"""
PLAIN = """import torch
from torch.autograd import gradcheck, gradgradcheck

{imports}

torch.manual_seed(0)
for function, shapes in (
{calls}
):
    inputs = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    for check in (gradcheck, gradgradcheck):
        check(function.apply, inputs, raise_exception={raises})
"""


@dataclass(frozen=True)
class Written:
    """A Function as text; `C` stands for a constant of its own."""

    name: str
    shapes: Mapping[str, str]
    """Of each input: the letters of its sizes."""
    forward: str
    gradients: tuple[str, ...]
    local: str = ""
    """A line of backward before it returns."""
    sizes: tuple[tuple[str, int], ...] = (("a", 4), ("b", 3), ("d", 5))
    constant: float = 1.0
    is_right: bool = True

    def text(self) -> str:
        """The class."""
        text = FUNCTION.format(
            name=self.name,
            inputs=", ".join(self.shapes),
            comma="," if len(self.shapes) == 1 else "",
            forward=self.forward,
            local=f"        {self.local}\n" if self.local else "",
            gradients=", ".join(self.gradients),
        )
        return re.sub(r"\bC\b", str(self.constant), text)

    def entry(self) -> str:
        """A line of the spec."""
        used = set("".join(self.shapes.values()))
        sizes = ", ".join(f"{letter}: {size}" for letter, size in self.sizes if letter in used)
        inputs = ", ".join(f"{name}: [{', '.join(letters)}]" for name, letters in self.shapes.items())
        return f"  {self.name}: {{sizes: {{{sizes}}}, inputs: {{{inputs}}}}}\n"

    def call(self, stem: str) -> str:
        """A line of the plain script."""
        known = dict(self.sizes)
        shapes = tuple(tuple(known[letter] for letter in letters) for letters in self.shapes.values())
        return f"    ({stem}.{self.name}, {shapes}),"


@dataclass(frozen=True)
class Module:
    """A file of Functions, with or without its spec."""

    stem: str
    functions: tuple[Written, ...]
    has_spec: bool = True


SILU = Written(
    "SiLU",
    {"x": "a"},
    "x * torch.sigmoid(x)",
    ("g * s * (1 + x * (1 - s))",),
    local="s = torch.sigmoid(x)",
)
SOFTMAX = Written(
    "Softmax",
    {"x": "ab"},
    "torch.softmax(x, -1)",
    ("y * (g - (g * y).sum(-1, keepdim=True))",),
    local="y = torch.softmax(x, -1)",
)
WRONG = {
    "rnn": Written(  # the derivative of tanh without its square: five gradients are wrong
        "RNNCell",
        {"x": "ab", "h": "ad", "w": "db", "u": "dd", "bias": "d"},
        "torch.tanh(x @ w.t() + h @ u.t() + bias)",
        ("p @ w", "p @ u", "p.t() @ x", "p.t() @ h", "p.sum(0)"),
        local="p = g * (1 - torch.tanh(x @ w.t() + h @ u.t() + bias))",
        is_right=False,
    ),
    "softmax": replace(SOFTMAX, name="SoftmaxDiagonal", gradients=("g * y * (1 - y)",), is_right=False),
    "linear": Written(
        "Linear",
        {"x": "ab", "w": "bb", "bias": "b"},
        "x @ w.t() + bias",
        ("g @ w", "x.t() @ g", "g.sum(0)"),
        is_right=False,
    ),
}

FORMULAS = (
    Written("Sine", {"x": "ab"}, "torch.sin(C * x)", ("C * torch.cos(C * x) * g",)),
    Written("Tanh", {"x": "ab"}, "torch.tanh(C * x)", ("C * (1 - torch.tanh(C * x) ** 2) * g",)),
    Written(
        "Swish",
        {"x": "ad"},
        "x * torch.sigmoid(C * x)",
        ("(s + C * x * s * (1 - s)) * g",),
        local="s = torch.sigmoid(C * x)",
    ),
    Written("LogOnePlus", {"x": "bd"}, "torch.log1p(C * x * x)", ("2 * C * x / (1 + C * x * x) * g",)),
    Written("Cube", {"x": "a"}, "C * x**3", ("3 * C * x * x * g",)),
    Written("Product", {"x": "ab", "y": "ab"}, "C * x * y", ("C * y * g", "C * x * g")),
    Written(
        "Damped",
        {"x": "ad", "y": "ad"},
        "x / (1 + C * y * y)",
        ("g / p", "-2 * C * x * y / (p * p) * g"),
        local="p = 1 + C * y * y",
    ),
    Written("ColumnSum", {"x": "ab"}, "(C * x).sum(0)", ("C * g.expand_as(x)",)),
    Written("MeanSquare", {"x": "ab"}, "C * (x * x).mean(1)", ("2 * C * x * g.unsqueeze(1) / x.shape[1]",)),
    Written(
        "LogSumExp",
        {"x": "ad"},
        "torch.logsumexp(C * x, 1)",
        ("C * torch.softmax(C * x, 1) * g.unsqueeze(1)",),
    ),
    Written(
        "Norm",
        {"x": "bd"},
        "(C + x * x).sum(1).sqrt()",
        ("x * (g / (C + x * x).sum(1).sqrt()).unsqueeze(1)",),
    ),
    Written(
        "CumulativeSquares",
        {"x": "ab"},
        "torch.cumsum(C * x * x, 0)",
        ("2 * C * x * g.flip(0).cumsum(0).flip(0)",),
    ),
    Written("MatMul", {"x": "ab", "y": "bd"}, "C * (x @ y)", ("C * (g @ y.t())", "C * (x.t() @ g)")),
    Written(
        "Linear",
        {"x": "ab", "w": "db", "bias": "d"},
        "C * (x @ w.t()) + bias",
        ("C * (g @ w)", "C * (g.t() @ x)", "g.sum(0)"),
    ),
    Written(
        "QuadraticForm",
        {"x": "ab", "w": "bb"},
        "C * (x @ w * x).sum(1)",
        ("p * (x @ (w + w.t()))", "x.t() @ (p * x)"),
        local="p = C * g.unsqueeze(1)",
    ),
    Written(
        "SquaredError",
        {"x": "ab", "y": "ab"},
        "C * (x - y).square().mean()",
        ("p", "-p"),
        local="p = 2 * C * g * (x - y) / x.numel()",
    ),
    Written(
        "SoftCrossEntropy",
        {"x": "ab", "y": "ab"},
        "-C * (torch.softmax(y, 1) * torch.log_softmax(x, 1)).sum()",
        ("C * g * (torch.softmax(x, 1) - q)", "-C * g * q * (l - (q * l).sum(1, keepdim=True))"),
        local="q, l = torch.softmax(y, 1), torch.log_softmax(x, 1)",
    ),
    Written(
        "LogCosh",
        {"x": "ad", "y": "ad"},
        "torch.log(torch.cosh(C * (x - y))).sum()",
        ("p", "-p"),
        local="p = C * g * torch.tanh(C * (x - y))",
    ),
)
"""Right Functions: elementwise, reductions, products of matrices, losses."""

PER_MODULE = 3


def modules(count: int) -> list[Module]:
    """So many modules of three right Functions; no two are the same in formula, sizes and constant."""
    every = [variant(number) for number in range(PER_MODULE * count)]
    return [Module(f"m{n}", tuple(every[PER_MODULE * n : PER_MODULE * (n + 1)])) for n in range(count)]


def variant(number: int) -> Written:
    """The right Function of this number."""
    turn, which = divmod(number, len(FORMULAS))
    formula = FORMULAS[which]
    sizes = (("a", 2 + turn % 4), ("b", 3 + turn % 3), ("d", 4 + turn % 2))
    return replace(formula, name=f"{formula.name}{number}", sizes=sizes, constant=0.5 + 0.25 * turn)


def dozen() -> list[Module]:
    """Three modules of four Functions: nine right ones, three wrong ones."""
    right = [variant(number) for number in range(0, 2 * 9, 2)]
    wrong = list(WRONG.values())
    return [Module(f"m{n}", (*right[3 * n : 3 * n + 3], wrong[n])) for n in range(3)]


def sized(function: Written, entries: int) -> Written:
    """With so many entries along the size `a`."""
    return replace(function, sizes=(("a", entries),))


def source(functions: Sequence[Written]) -> str:
    """The text of a module."""
    return HEAD + "".join(function.text() for function in functions)


def write(folder: Path, written: Sequence[Module]) -> None:
    """The modules, their specs, and the plain script beside them."""
    for module in written:
        (folder / f"{module.stem}.py").write_text(source(module.functions), "utf-8")
        if module.has_spec:
            entries = "".join(function.entry() for function in module.functions)
            spec = f"gradverify: 1\nmodule: {module.stem}.py\nfunctions:\n{entries}"
            (folder / f"{module.stem}.gradverify.yaml").write_text(spec, "utf-8")
    plain = PLAIN.format(
        imports="\n".join(f"import {module.stem}" for module in written),
        calls="\n".join(f.call(module.stem) for module in written for f in module.functions),
        raises=all(f.is_right for module in written for f in module.functions),
    )
    (folder / SCRIPT).write_text(plain, "utf-8")
