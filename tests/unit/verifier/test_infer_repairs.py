"""What an error does to the inputs that raised it, and inputs that ran by chance."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gradverify.model import Frame, RaisedError
from gradverify.verifier.infer.frames import suspects_of
from gradverify.verifier.infer.repairs import BROADCAST, repairs, unbroadcast
from gradverify.verifier.infer.search import begun_again, evened, is_by_chance, uneven_cuts
from gradverify.verifier.infer.shapes import by_fixed_size, by_size
from gradverify.verifier.infer.state import Argument, Dim, Guess, Kind, State
from gradverify.verifier.infer.trial import Caller, Ran, attempt


def state(*shapes, parts=(), joins=False):
    """Tensors of distinct symbols, named x, w, b."""
    made, arguments = State(parts=frozenset(parts), joins=joins), []
    for name, rank in zip("xwb", shapes, strict=False):
        made, dims = made.fresh(rank)
        arguments.append(Argument(name, Guess(Kind.FLOAT, 0.0), dims))
    return replace(made, arguments=tuple(arguments))


def shapes(one):
    return [one.shape(a) for a in one.arguments]


def test_a_sum_of_two_symbols_has_a_value_and_is_written():
    dim = Dim(0, times=2, added=1)
    assert dim.value({0: 3, 1: 5}) == 11
    assert dim.written({0: "n", 1: "d"}) == "2*n + d"
    assert dim.symbols == (0, 1) and not dim.is_plain


def test_a_fixed_last_dimension_is_that_of_one_argument_alone():
    before = state(2)
    shared = replace(before.arguments[0], name="w")
    before = replace(before, arguments=(*before.arguments, shared))
    found, _ = next(by_fixed_size(before, "Expected grid to have size 2 in last dimension", [1]))
    assert shapes(found) == [before.shape(shared), (before.shape(shared)[0], 2)]


def test_unequal_parts_are_seen_and_made_equal():
    before = state(2, parts={4})
    caller = Caller(lambda x: x.chunk(4, 1)[0], {}, {})
    cuts = uneven_cuts(caller, before)
    width = before.shape(before.arguments[0])[1]
    assert cuts == ((width, 4),)
    after = next(evened(before, cuts))
    assert after.shape(after.arguments[0])[1] == 4 * width
    assert uneven_cuts(caller, after) == ()


def test_square_inputs_and_counts_of_one_hide_mistakes():
    free = state(2, 2)
    assert not is_by_chance(free)
    (n, d) = free.arguments[0].dims
    square = free.substituted(d.symbol, n)
    assert is_by_chance(square)
    again = list(begun_again(square))
    assert any(len(a.dims) == 1 for s in again for a in s.arguments)
    assert not is_by_chance(again[0])
    count = Argument("factor", Guess(Kind.LITERAL, 0.0, (1,), found=False))
    assert is_by_chance(replace(free, arguments=(*free.arguments, count)))


def test_a_complex_leaf_gets_a_gradient():
    made = state(1)
    made = made.with_argument(0, replace(made.arguments[0], dtype="complex128"))
    ran = attempt(Caller(lambda x: x * x.conj(), {}, {}), made)
    assert isinstance(ran, Ran)
    assert ran.gradients["x"].dtype is torch.complex128


def launching(ctx, x, state, scale):
    x = x.contiguous()
    return launched(x, scale=scale, start=state)


def launched(rows, start=None, scale=1.0):
    b, n, d = rows.shape  # noqa: RUF059
    return rows if start is None else rows * scale


def test_what_is_cut_becomes_a_multiple_of_what_its_parts_meet():
    before = state(1, 1, parts={4})
    (whole,), (other,) = shapes(before)
    found = by_size(before, f"Expected size {-(-whole // 4)} but got size {other}")
    second = before.arguments[1].dims[0].symbol
    assert any(s is not None and s.arguments[0].dims == (Dim(second, times=4),) for s, _ in found)


def test_a_size_is_the_sum_of_two_only_where_something_is_joined():
    for joins in (True, False):
        before = state(2, 1, joins=joins)
        (n, d), (k,) = shapes(before)
        found = [s for s, _ in by_size(before, f"Expected size {n + d} but got size {k}") if s is not None]
        assert any(s.arguments[1].dims[0].added >= 0 for s in found) is joins


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


CONDITIONS = [
    ("w.shape != x.shape[1:]", lambda x, w, b: w == x[1:]),
    ("w.shape != x.shape + (3,)", lambda x, w, b: w == (*x, 3)),
    ("b.shape != (x.size(1) - 1,)", lambda x, w, b: b == (x[1] - 1,)),
    ("w.shape != (2, b.numel())", lambda x, w, b: w == (2, *b)),
    ("w.shape != torch.Size([x.shape[0], x.shape[1] // 2])", lambda x, w, b: w == (x[0], x[1] // 2)),
    ("w.shape != b.shape or w.shape != x.shape[:1]", lambda x, w, b: w == b == x[:1]),
    ("len(b) != x.shape[0]", lambda x, w, b: b == x[:1]),
    ("x.shape[2] % (2 * 2)", lambda x, w, b: x[2] % 4 == 0),
]


@pytest.mark.parametrize(("condition", "holds"), CONDITIONS, ids=[c for c, _ in CONDITIONS])
def test_the_condition_of_an_author_is_kept_whatever_its_message(condition, holds, tmp_path):
    file = tmp_path / "m.py"
    file.write_text(
        f"def forward(ctx, x, w, b):\n    if {condition}:\n        raise ValueError\n    return x\n"
    )
    before = state(3, 2, 1)
    error = RaisedError(
        "ValueError", "", deliberate=True, frames=(Frame(str(file), 3, "forward", "raise ValueError"),)
    )
    assert not holds(*shapes(before))
    assert any(holds(*shapes(s)) for s in repairs(before, error))


def test_of_two_shapes_that_do_not_go_together_one_may_be_a_number():
    message = "The size of tensor a (3) must match the size of tensor b (5) at non-singleton dimension 1"
    error = RaisedError("RuntimeError", message)
    assert {(2, 0), (2, 1), (0, 2), (1, 2)} <= ranks_of(repairs(state(2, 2), error, [BROADCAST]))
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
