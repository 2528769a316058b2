"""Evidence from source, and what an error does to the shapes that raised it."""

import ast
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from gradverify.model import Frame, RaisedError
from gradverify.verifier.collect.inference.call_sites import call_sites
from gradverify.verifier.collect.inference.candidates import FACTORS, Guess, Kind
from gradverify.verifier.collect.inference.elsewhere import trees_elsewhere
from gradverify.verifier.collect.inference.evidence import gather
from gradverify.verifier.collect.inference.refused_gradients import unbroadcast
from gradverify.verifier.collect.inference.relaxed import is_by_chance
from gradverify.verifier.collect.inference.repairs import repairs, suspects_of
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State


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
    @staticmethod
    def forward(ctx, x, how, way, mode, kind):
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
    names = ("x", "how", "way", "mode", "kind")
    facts = gather(names, Kept.forward, None, Kept.backward).facts
    assert [facts[name].strings for name in names] == [
        [],
        ["none", "first", "last"],
        ["sum", "mean"],
        ["a", "b"],
        ["soft", "hard"],
    ]


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


WRAPPED = """
EPS = 1e-6
def op(x, k, flag=False):
    return Op.apply(x, k, EPS, flag, lambda t: t)
class Layer(nn.Module):
    def __init__(self, k):
        self.k = k
    def forward(self, x):
        return op(x, self.k, not self.training)
"""
ELSEWHERE = """
from .ops import Layer, Op, op
from . import ops
layer = Layer(7)
ops.op(1.0, k=5)
def own(x, more=3):
    return Op.apply(x, more)
"""


def test_other_files_pass_what_the_wrapper_hands_on():
    names = ("x", "k", "eps", "flag", "f")
    passed = call_sites(WRAPPED, "Op", names, others=[ast.parse(ELSEWHERE)])
    assert passed["k"].literals == (7, 5, 3)
    assert passed["eps"].literals == (1e-6,)
    assert passed["flag"].literals == (False,)
    assert passed["f"].kinds == {"callable"}


def test_files_of_the_package_that_call_a_name_are_found_nearest_first(tmp_path):
    package = tmp_path / "pkg"
    (package / "deep").mkdir(parents=True)
    for folder in (package, package / "deep"):
        (folder / "__init__.py").write_text("")
    (package / "ops.py").write_text("")
    (package / "deep" / "far.py").write_text("far = Op.apply(1)")
    (package / "near.py").write_text("near = op (2)")
    (package / "other.py").write_text("Optimizer(1); my_op(2); Op = 3")
    module = ModuleType("pkg.ops")
    module.__file__ = str(package / "ops.py")
    found = [ast.unparse(tree) for tree in trees_elsewhere(module, {"Op", "op"})]
    assert found == ["near = op(2)", "far = Op.apply(1)"]


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


def state(*shapes):
    """Tensors of distinct symbols, with their sizes."""
    made, arguments = State((), ()), []
    for name, rank in zip("xwb", shapes, strict=False):
        made, dims = made.fresh(rank)
        arguments.append(Argument(name, Guess(Kind.FLOAT, 0.0), dims))
    return State(tuple(arguments), made.sizes)


def raising(message, *lines):
    """An error whose frames are these lines of this file, the outermost first."""
    text = Path(__file__).read_text().splitlines()
    numbers = [text.index(line) + 1 for line in lines]
    frames = [Frame(__file__, n, "", line.strip()) for n, line in zip(numbers, lines, strict=True)]
    return RaisedError("RuntimeError", message, frames=tuple(frames))


def test_a_number_that_is_asked_for_what_tensors_have_is_a_tensor():
    given = state(2)
    number = Argument("w", Guess(Kind.LITERAL, 0.0, (0.75,), found=False))
    given = replace(given, arguments=(*given.arguments, number))
    error = RaisedError("AttributeError", "'float' object has no attribute 'clone'")
    shapes = {len(s.arguments[1].dims) for s in repairs(given, error) if s.arguments[1].is_tensor}
    assert shapes == {0, 1, 2}
    other = RaisedError("AttributeError", "'float' object has no attribute 'optimizer'")
    assert not any(s.arguments[1].is_tensor for s in repairs(given, other))
    written = replace(
        given, arguments=(given.arguments[0], replace(number, guess=Guess(Kind.LITERAL, 0.0, (0.75,))))
    )
    assert not any(s.arguments[1].is_tensor for s in repairs(written, error))


def test_the_names_of_a_helper_lead_to_the_parameters_that_it_got():
    given = state(2, 2)
    renamed = tuple(replace(a, name=n) for a, n in zip(given.arguments, ("x", "state"), strict=True))
    call = "    return launched(x, scale=scale, start=state)"
    error = raising("not enough values to unpack", call, "    b, n, d = rows.shape  # noqa: RUF059")
    assert suspects_of(replace(given, arguments=renamed), error) == [0]


def ranks_of(found):
    return {tuple(len(a.dims) for a in s.arguments) for s in found}


def test_an_error_that_says_nothing_may_be_about_dimensions():
    silent = RaisedError("AssertionError", "")
    assert {(2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 1, 1)} <= ranks_of(repairs(state(2, 2, 2), silent))
    assert not ranks_of(repairs(state(2, 2, 2), RaisedError("ValueError", "alpha is negative")))


def test_of_two_shapes_that_do_not_go_together_one_may_be_a_number():
    message = "The size of tensor a (3) must match the size of tensor b (5) at non-singleton dimension 1"
    error = RaisedError("RuntimeError", message)
    assert {(2, 0), (2, 1), (0, 2), (1, 2)} <= ranks_of(repairs(state(2, 2), error, broadcast=True))
    assert (2, 0) not in ranks_of(repairs(state(2, 2), error))


def test_a_size_of_one_that_backward_keeps_is_one_of_the_inputs():
    given = state(2, 2)
    got = f"[{given.shape(given.arguments[0])[0]}, 1]"
    message = f"invalid gradient at index 0 - got {got} but expected shape compatible with [4, 3]"
    changed = unbroadcast(given, message, ("x", "w"))
    assert changed.shape(changed.arguments[0]) == (4, 1)
    assert changed.shape(changed.arguments[1]) == given.shape(given.arguments[1])


def test_what_eigh_reads_is_symmetric():
    message = "linalg.eigh: A must be batches of square matrices, but they are 4 by 3 matrices"
    found = list(repairs(state(2), RaisedError("RuntimeError", message)))
    assert any(s.arguments[0].structure == "symmetric" for s in found)
    assert not is_by_chance(next(s for s in found if s.arguments[0].structure))


def test_functions_of_several_arguments_and_modules_are_told_by_what_they_are_asked_for():
    given = state(2)
    called = Argument("f", Guess(Kind.CALLABLE, 0.3, found=False, path="torch.tanh"))
    given = replace(given, arguments=(*given.arguments, called))
    of_two = RaisedError("TypeError", "tanh() takes 1 positional argument but 2 were given")
    assert [s.arguments[1].guess.path for s in repairs(given, of_two)] == ["torch.mul"]
    asked = "'builtin_function_or_method' object has no attribute 'parameters'"
    found = list(repairs(given, RaisedError("AttributeError", asked)))
    assert any(s.arguments[1].guess.made for s in found)


def best(found):
    return min(found, key=lambda s: s.cost)


def test_the_sizes_that_disagree_are_merged():
    before = state(2, 2)
    (n, d), (m, e) = (before.shape(a) for a in before.arguments)
    error = RaisedError("RuntimeError", f"mat1 and mat2 shapes cannot be multiplied ({n}x{d} and {e}x{m})")
    after = best(repairs(before, error))
    assert after.shape(after.arguments[0])[1] == after.shape(after.arguments[1])[1]
    assert len(after.symbols()) == 3
    assert not after.pinned


def test_a_size_that_nothing_has_is_pinned_and_remembered():
    before = state(2)
    error = RaisedError(
        "RuntimeError", f"expected size 37 but got size {before.shape(before.arguments[0])[1]}"
    )
    after = best(s for s in repairs(before, error) if s.pinned)
    assert after.arguments[0].dims[1] == Dim(plus=37)
    assert after.pinned == {"x"}


def test_only_a_smaller_gradient_says_that_an_input_was_broadcast():
    before = state(2, 2)
    n, d = before.shape(before.arguments[0])
    said = (
        "FBackward returned an invalid gradient at index 0 - got [{}] but expected shape compatible with [{}]"
    )
    narrower = unbroadcast(before, said.format(d, f"{n}, {d}"), ("x", "w"))
    assert narrower is not None
    assert narrower.shape(narrower.arguments[0]) == (d,)
    assert unbroadcast(before, said.format(f"{d}, {n}", f"{n}, {d}"), ("x", "w")) is None


def test_invented_factors_hide_no_mistake():
    assert not set(FACTORS) & {0.0, 1.0, 2.0}


def test_a_dimension_that_is_cut_into_parts_is_a_multiple_of_them():
    before = state(3)
    n, *rest = before.shape(before.arguments[0])
    error = RaisedError(
        "RuntimeError", f"shape '[{n}, 2, -1]' is invalid for input of size {n * rest[0] * rest[1]}"
    )
    tried = [s.shape(s.arguments[0]) for s in repairs(before, error) if not s.pinned]
    assert (n, 2 * rest[0], rest[1]) in tried
    assert (n, rest[0], 2 * rest[1]) in tried
    assert not any(shape[0] != n and shape[1:] == tuple(rest) for shape in tried)


def test_a_refusal_that_names_a_rank_in_few_words_is_understood():
    n, d = Dim(0), Dim(1)
    vectors = tuple(Argument(name, Guess(Kind.FLOAT, 0.0), (n, d)) for name in ("impulse", "decay", "init"))
    state = State(vectors, ((0, 4), (1, 3)))
    error = RaisedError("RuntimeError", "Initials must be 1D", deliberate=True)
    ranks = {tuple(len(a.dims) for a in other.arguments) for other in repairs(state, error)}
    assert (2, 2, 1) in ranks
