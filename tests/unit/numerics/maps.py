"""Maps to differentiate, and problems made of them. Every map here has a right backward: torch's own."""

import torch
from torch.nn import functional as F

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.jacobian import KnownColumns
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem, returned_tensors
from gradverify.verifier.numerics.round_off import gradient_noise
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import judge

RTOL = 1e-7


def problem_of(function, *tensors, seed=0):
    """Make one call of a function into a problem; all tensors are differentiated."""
    states = guard.RandomStates(seed)
    states.replay()
    outputs = returned_tensors(function(*[t.clone() for t in tensors]))
    arguments = tuple(Argument(f"x{i}", t, differentiable=True) for i, t in enumerate(tensors))
    positions = tuple(range(len(outputs)))
    return CallProblem(function, arguments, positions, Layout.of(outputs), states)


def judged(function, *tensors):
    """Judge a function at first order."""
    return judge(problem_of(function, *tensors), Tolerance(RTOL))


def judged_twice(function, *tensors, seed=0):
    """Judge a function at first and second order; None in second place where it has no second order."""
    problem = problem_of(function, *tensors)
    first = judge(problem, Tolerance(RTOL))
    generator = torch.Generator().manual_seed(seed + 1)
    u = torch.randn(problem.outputs.size, generator=generator, dtype=torch.float64)
    second = VjpProblem(problem, problem.outputs.unflatten(u))
    if isinstance(second.graph(second.primals), Raised):
        return first, None
    known = KnownColumns(first.comparison.analytical.mT, first.measured.error.mT.nan_to_num(0.0, 0.0, 0.0))
    return first, judge(second, Tolerance(RTOL), noise=gradient_noise(second), known=known)


def normal(*shape):
    return lambda g: torch.randn(*shape, generator=g, dtype=torch.float64)


def between(low, high, *shape):
    return lambda g: low + (high - low) * torch.rand(*shape, generator=g, dtype=torch.float64)


def spd(n):
    def draw(g):
        a = torch.randn(n, n, generator=g, dtype=torch.float64)
        return a @ a.mT + n * torch.eye(n, dtype=torch.float64)

    return draw


def conditioned(n, condition):
    def draw(g):
        q, _ = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64))
        p, _ = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64))
        return q @ torch.diag(torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), n).double()) @ p

    return draw


def complex_normal(*shape):
    return lambda g: torch.complex(normal(*shape)(g), normal(*shape)(g))


SMOOTH = {
    "sin": (torch.sin, normal(5)),
    "exp": (torch.exp, normal(5)),
    "tanh": (torch.tanh, normal(5)),
    "sigmoid": (torch.sigmoid, normal(5)),
    "gelu": (F.gelu, normal(5)),
    "silu": (F.silu, normal(5)),
    "softplus": (F.softplus, normal(5)),
    "log": (torch.log, between(0.2, 3, 5)),
    "sqrt": (torch.sqrt, between(0.2, 3, 5)),
    "rsqrt": (torch.rsqrt, between(0.2, 3, 5)),
    "reciprocal": (torch.reciprocal, between(0.3, 3, 5)),
    "atan": (torch.atan, normal(5)),
    "erf": (torch.erf, normal(5)),
    "expm1": (torch.expm1, normal(5)),
    "cube": (lambda x: x**3, normal(5)),
    "softmax": (lambda x: torch.softmax(x, -1), normal(2, 4)),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), normal(2, 4)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), normal(2, 4)),
    "layer_norm": (lambda x: F.layer_norm(x, (5,)), normal(2, 5)),
    "normalize": (lambda x: F.normalize(x, dim=-1), normal(2, 4)),
    "norm": (lambda x: x.norm(dim=-1), normal(2, 4)),
    "var": (lambda x: x.var(dim=-1), normal(2, 4)),
    "prod": (lambda x: x.prod(-1), normal(2, 4)),
    "cumsum": (lambda x: x.cumsum(-1), normal(2, 4)),
    "cumprod": (lambda x: x.cumprod(-1), normal(2, 4)),
    "mean": (lambda x: x.mean(-1), normal(2, 4)),
    "flip": (lambda x: x.flip(-1), normal(2, 4)),
    "gather": (lambda x: x[:, [0, 2, 2]], normal(2, 4)),
    "det": (torch.linalg.det, spd(3)),
    "inv": (torch.linalg.inv, spd(3)),
    "cholesky": (lambda a: torch.linalg.cholesky((a + a.mT) / 2), spd(3)),
    "eigvalsh": (lambda a: torch.linalg.eigvalsh((a + a.mT) / 2), spd(3)),
    "matrix_exp": (torch.linalg.matrix_exp, normal(2, 2)),
    "fft": (torch.fft.rfft, normal(6)),
    "polar": (lambda x: torch.polar(x, x * 2), between(0.5, 2, 3)),
    "complex_square": (lambda z: z * z, complex_normal(3)),
    "complex_abs": (lambda z: z.abs(), complex_normal(3)),
    "conjugate_product": (lambda z: z * z.conj().roll(1), complex_normal(3)),
    "two_outputs": (lambda x: (x.sin(), x.sum() * x[:2]), normal(4)),
    "scalar_output": (lambda x: (x * x).sum(), normal(4)),
}
"""One tensor each, far from any kink."""

SEVERAL = {
    "multiply": (torch.mul, normal(3, 2), normal(3, 2)),
    "broadcast": (torch.mul, normal(3, 1), normal(1, 2)),
    "divide": (torch.div, normal(4), between(0.5, 2, 4)),
    "power": (torch.pow, between(0.3, 2, 4), normal(4)),
    "matmul": (torch.matmul, normal(2, 3), normal(3, 2)),
    "linear": (F.linear, normal(2, 3), normal(2, 3), normal(2)),
    "conv1d": (F.conv1d, normal(1, 2, 5), normal(2, 2, 3)),
    "solve": (torch.linalg.solve, spd(3), normal(3, 1)),
    "cosine": (lambda a, b: F.cosine_similarity(a, b, dim=-1), normal(2, 3), normal(2, 3)),
    "attention": (
        lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v,
        normal(2, 3),
        normal(3, 3),
        normal(3, 2),
    ),
    "atan2": (torch.atan2, normal(4), normal(4)),
    "lerp": (torch.lerp, normal(3), normal(3), normal(3)),
}

HARD = {
    "exp(10x)": (lambda x: torch.exp(10 * x), between(-2, 2, 6)),
    "saturated softmax": (lambda x: torch.softmax(40 * x, -1), normal(2, 4)),
    "saturated sigmoid": (torch.sigmoid, between(-60, 60, 6)),
    "tanh far out": (torch.tanh, between(10, 30, 6)),
    "gelu far out": (F.gelu, between(-8.3, -5, 12)),
    "x(1 + erf)": (lambda x: x * (1 + torch.erf(x)), between(-5.8, -3.5, 12)),
    "1 - tanh² of x": (lambda x: 1 - torch.tanh(x) ** 2, between(5, 19, 12)),
    "log(1 + exp)": (lambda x: torch.log(1 + torch.exp(x)), between(-37, -20, 12)),
    "1/x at 1e-3": (lambda x: 1 / x, between(1e-3, 2e-3, 6)),
    "1/x, one tiny": (lambda x: 1 / (x * torch.tensor([1.0, 1.0, 1e-6]).double()), between(1, 2, 3)),
    "sqrt near 0": (torch.sqrt, between(1e-12, 1e-9, 6)),
    "log near 0": (torch.log, between(1e-9, 1e-8, 6)),
    "poles at many distances": (lambda x: 1e-4 / x, lambda g: normal(64)(g) * 1e-5 + 3e-5),
    "acos near 1": (torch.acos, between(0.999999, 0.9999999, 6)),
    "asin, one near 1": (lambda x: torch.asin(torch.cat([x, 1 - 1e-9 * x[:1]])), between(0.1, 0.9, 4)),
    "normalise at 1e-6": (lambda x: F.normalize(x, dim=-1, eps=0.0), lambda g: 1e-6 * normal(2, 4)(g)),
    "logsumexp far apart": (lambda x: torch.logsumexp(1000 * x.sign() + x, -1), normal(2, 4)),
    "eigvalsh": (lambda a: torch.linalg.eigvalsh((a + a.mT) / 2), normal(4, 4)),
    "inverse, condition 1e6": (torch.linalg.inv, conditioned(4, 1e6)),
    "cumprod with zeros": (
        lambda x: torch.cumprod(x, -1),
        lambda g: normal(6)(g) * torch.tensor([1.0, 0, 1, 1, 0, 1]).double(),
    ),
    "x**3 at 1e6": (lambda x: x**3, between(0.5e6, 2e6, 6)),
    "sin(1e5 x)": (lambda x: torch.sin(1e5 * x), normal(6)),
    "sin(1e9 x)": (lambda x: torch.sin(1e9 * x), normal(6)),
    "layer norm, variance 1e-4": (lambda x: F.layer_norm(1e-2 * x, (5,)), normal(2, 5)),
    "large offset": (lambda x: 1e12 + x, normal(6)),
    "cancelling": (lambda x: (x * x + 1e8) - 1e8, normal(6)),
    "float32 inside": (lambda x: torch.sin(x.float()).double(), normal(6)),
    "float32 sum inside": (lambda x: (x.float() + 1000).double() * 1e-3, normal(6)),
    "bfloat16 inside": (lambda x: (x.bfloat16() * 3).double(), normal(6)),
    "mixed sizes": (
        lambda x: x.sin() * x,
        lambda g: normal(6)(g) * torch.tensor([1e-12, 1e-6, 1e-3, 1, 1e3, 1e6]).double(),
    ),
    "sizes 1e12 apart": (lambda x: x[:3] * 1e6 + x[3:] * 1e-6, normal(6)),
    "sum of large and small": (lambda x: x.sum() + 1e9 * x[0], normal(6)),
    "ndtr far out": (torch.special.ndtr, between(-12, 12, 8)),
    "relu, tiny inputs": (torch.relu, lambda g: normal(8)(g) * 10 ** between(-14, 0, 8)(g)),
    "abs, tiny inputs": (torch.abs, lambda g: normal(8)(g) * 10 ** between(-14, 0, 8)(g)),
    "relu of a difference": (lambda x: torch.relu(x - x.roll(1)), normal(6)),
    "rounded to 1e-3": (lambda x: torch.round(x, decimals=3), normal(6)),
    "x**5 at 0": (lambda x: x**5, lambda g: normal(4)(g) * torch.tensor([0.0, 1, 1, 0]).double()),
    "|x|**1.5": (
        lambda x: x.abs() ** 1.5,
        lambda g: normal(4)(g) * torch.tensor([1e-9, 1, 1, 1e-4]).double(),
    ),
}
"""Steep, saturated, cancelling, tiny, huge: right everywhere, and nowhere easy."""

KINKS = {
    "relu": (torch.relu, [0.0, 1.0, -2.0]),
    "abs": (torch.abs, [0.0, 1.0, -2.0]),
    "leaky relu": (lambda x: F.leaky_relu(x, 0.1), [0.0, 1.0, -2.0]),
    "clamp": (lambda x: x.clamp(-1, 1), [-1.0, 1.0, 0.3]),
    "hardtanh": (F.hardtanh, [-1.0, 1.0, 0.3]),
    "softshrink": (lambda x: F.softshrink(x, 0.5), [0.5, -0.5, 1.2]),
    "max": (lambda x: x.max().reshape(1), [2.0, 2.0, 1.0]),
    "|u·v|": (lambda x: (x[0] * x[1]).abs().reshape(1), [0.0, 1.5, 0.7]),
    "huber at its corner": (lambda x: F.relu(x - 1) - F.relu(-x - 1), [1.0, -1.0, 0.2]),
    "elu, alpha 2": (lambda x: F.elu(x, 2.0), [0.0, 1.0, -2.0]),
    "maximum": (lambda x: torch.maximum(x, torch.tensor([1.0, 0.0, 0.0]).double()), [1.0, 2.0, 1.0]),
}
"""A kink at the first entry (by itself or tied with another)."""

JUMPS = {
    "floor": (lambda x: torch.floor(x) + 0 * x, [1.0, 0.3, -2.7]),
    "sign": (lambda x: torch.sign(x) + 0 * x, [0.0, 0.3, -2.7]),
    "heaviside": (lambda x: (x > 0).to(x) * x.cos(), [0.0, 0.3, -2.7]),
    "hardshrink": (lambda x: F.hardshrink(x, 0.5), [0.5, -0.5, 1.2]),
    "frac": (torch.frac, [1.0, 0.3, -2.7]),
}
"""A jump at the first entry."""


def drawn(entry, seed):
    """The function of a table's entry, and its tensors for a seed."""
    function, *draws = entry
    generator = torch.Generator().manual_seed(1000 + seed)
    return function, [draw(generator) for draw in draws]
