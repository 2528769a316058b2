"""Evidence from the source of a target and of the module that calls it."""

from gradverify.verifier.infer.call_sites import call_sites
from gradverify.verifier.infer.evidence import gather


def forward(ctx, x, index, mask, reduction, dim, n=3):
    b, c, h, w = x.shape  # noqa: RUF059
    if reduction == "sum":
        return x.sum(dim)
    x = x.masked_fill(mask, 0.0)
    return x.index_select(0, index).view(n, -1)


def backward(ctx, g):
    if ctx.flag:
        return g, None, None, None, None, None
    nothing = None
    return g * 2, nothing, None, None, None, None


def test_uses_of_a_parameter_tell_what_it_is():
    facts = gather(("x", "index", "mask", "reduction", "dim", "n"), forward, None, backward).facts
    assert (facts["x"].rank, facts["x"].names) == (4, ("b", "c", "h", "w"))
    assert "index" in facts["index"].kinds
    assert "bool" in facts["mask"].kinds
    assert facts["reduction"].strings == ["sum"]
    assert "dim" in facts["dim"].kinds
    assert "int" in facts["n"].kinds


WAYS = {"sum": None, "mean": None}


class Kept:
    KINDS = ("full", "valid")
    ENDS = {"wrap": None, "clip": None}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x, how, way, mode, kind, part, end):
        assert part in Kept.KINDS
        if end not in Kept.ENDS.keys():  # noqa: SIM118 - as people write it
            raise ValueError
        ctx.how, ctx.mode = how, mode
        {"none": None, "first": None}[how](x)
        match kind:
            case "soft" | "hard":
                x = x + 1
        return WAYS[way](x)

    @staticmethod
    def backward(ctx, g):
        return g / 2 if ctx.how == "last" else g, None, None, None if ctx.mode in ("a", "b") else g, None


def test_options_are_keys_of_tables_and_what_ctx_keeps_is_compared_with():
    names = ("x", "how", "way", "mode", "kind", "part", "end")
    facts = gather(names, Kept.forward, None, Kept.backward).facts
    assert [facts[name].strings for name in names] == [
        [],
        ["none", "first", "last"],
        ["sum", "mean"],
        ["a", "b"],
        ["soft", "hard"],
        ["full", "valid"],
        ["wrap", "clip"],
    ]


class KeptTogether:
    @staticmethod
    def forward(ctx, x, rate, how, mode):
        ctx.given = rate, how, mode
        return x * rate

    @staticmethod
    def backward(ctx, g):
        _, way, _ = ctx.given
        if "mean" in way:
            return g / 2, None, None, None
        return g * (way == "sum") if ctx.given[2] == "slow" else g, None, None, None


def test_options_are_found_in_what_ctx_keeps_of_several():
    names = ("x", "rate", "how", "mode")
    facts = gather(names, KeptTogether.forward, None, KeptTogether.backward).facts
    assert [facts[name].strings for name in names] == [[], [], ["mean", "sum"], ["slow"]]


def test_a_gradient_that_is_none_in_every_return_is_a_constant():
    facts = gather(("x", "index", "mask", "reduction", "dim", "n"), forward, None, backward).facts
    assert facts["x"].gradient is True
    assert facts["index"].gradient is False


SOURCE = """
from torch import nn
def op(x, alpha=0.5):
    def inner(y):
        return Op.apply(y, alpha, 1e-6)
    return inner(x)
class Layer(nn.Module):
    def __init__(self, k=4):
        self.k = k
        self.weight = nn.Parameter(torch.ones(3))
    def forward(self, x):
        return Op.apply(x, self.weight, self.k)
"""


def test_call_sites_give_literals_defaults_and_attributes():
    passed = call_sites(SOURCE, "Op", ("x", "a", "eps"))
    assert passed["a"].literals == (0.5,)
    assert passed["eps"].literals == (1e-6, 4)
    assert passed["a"].is_parameter
    assert not passed["x"].is_parameter


REBINDING = """
class Layer:
    def __init__(self, size=512):
        self.size = size

    def forward(self, x, size=None, scale=None, bias=None):
        size = default(size, self.size)
        if scale is None:
            scale = x.shape[-1] ** -0.5
        y = Op.apply(x, size, scale, bias)
        bias = y
        return bias
"""


def test_none_is_not_passed_where_a_wrapper_puts_another_value_in_its_place():
    passed = call_sites(REBINDING, "Op", ("x", "size", "scale", "bias"))
    assert (passed["size"].literals, passed["size"].default) == ((), ...)
    assert (passed["scale"].literals, passed["scale"].default) == ((), ...)
    assert (passed["bias"].literals, passed["bias"].default) == ((None,), None)


def launched(rows, start=None, scale=1.0):
    b, n, d = rows.shape  # noqa: RUF059
    if scale == 3.0:
        return rows
    return rows if start is None else kept(start, rows)


def kept(first, rows):
    return first.clone() + rows


def launching(ctx, x, state, scale):
    x = x.contiguous()
    return launched(x, scale=scale, start=state)


def test_what_helpers_do_with_a_parameter_tells_of_it():
    facts = gather(("x", "state", "scale"), launching).facts
    assert (facts["x"].rank, facts["x"].names) == (3, ("b", "n", "d"))
    assert {"none", "tensor"} <= facts["state"].kinds
    assert facts["scale"].numbers == [3.0]


class Rowwise:
    @staticmethod
    def forward(ctx, x, w, scale):
        y = x * scale
        ctx.save_for_backward(w.contiguous(), y)
        return y

    @staticmethod
    def backward(ctx, g):
        weight, y = ctx.saved_tensors
        return g.mm(weight.t()), y.bmm(g), None


def test_backward_tells_of_what_was_saved_under_its_own_names():
    facts = gather(("x", "w", "scale"), Rowwise.forward, None, Rowwise.backward).facts
    assert facts["w"].rank == 2
    assert facts["x"].rank is None


class Cell:
    @staticmethod
    def forward(ctx, x, h, w):
        i, f, g, o = (torch.cat([x, h], 1) @ w.t()).chunk(4, 1)  # noqa: F821, RUF059
        a, b = h.unbind(0)  # noqa: RUF059
        return x.conj() * i


def test_parts_and_joins_are_read_off_the_source():
    found = gather(("x", "h", "w"), Cell.forward)
    assert (found.parts, found.joins, found.complexes) == ({4}, True, {"x"})
