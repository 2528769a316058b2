"""What an error does to the inputs that raised it, and inputs that ran by chance."""

from dataclasses import replace
from pathlib import Path

import torch

from gradverify.model import Frame, RaisedError
from gradverify.verifier.infer.chance import begun_again, evened, is_by_chance, uneven_cuts
from gradverify.verifier.infer.repairs import repairs, unbroadcast
from gradverify.verifier.infer.state import Argument, Dim, Guess, Kind, State
from gradverify.verifier.infer.trial import Caller, Ran, attempt


def state(*shapes, parts=()):
    """Tensors of distinct symbols, named x, w, b."""
    made, arguments = State(parts=frozenset(parts)), []
    for name, rank in zip("xwb", shapes, strict=False):
        made, dims = made.fresh(rank)
        arguments.append(Argument(name, Guess(Kind.FLOAT, 0.0), dims))
    return replace(made, arguments=tuple(arguments))


def shapes(one):
    return [one.shape(a) for a in one.arguments]


def test_a_multiple_of_a_symbol_has_a_value_and_is_written():
    dim = Dim(0, times=2, plus=1)
    assert dim.value({0: 3}) == 7
    assert dim.written({0: "n"}) == "2*n + 1"
    assert dim.symbols == (0,) and not dim.is_plain


def test_a_fixed_last_dimension_is_that_of_one_argument_alone():
    before = state(2)
    shared = replace(before.arguments[0], name="w")
    before = replace(before, arguments=(*before.arguments, shared))
    error = RaisedError("RuntimeError", "Expected grid w to have size 2 in last dimension")
    assert [before.shape(shared), (before.shape(shared)[0], 2)] in [shapes(s) for s in repairs(before, error)]


def test_unequal_parts_are_seen_and_made_equal():
    before = state(2, parts={4})
    caller = Caller(lambda x: x.chunk(4, 1)[0], {})
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
    ran = attempt(Caller(lambda x: x * x.conj(), {}), made)
    assert isinstance(ran, Ran)
    assert ran.gradients["x"].dtype is torch.complex128


def test_what_is_cut_becomes_a_multiple_of_what_its_parts_meet():
    before = state(1, 1, parts={4})
    (whole,), (other,) = shapes(before)
    error = RaisedError("RuntimeError", f"Expected size {-(-whole // 4)} but got size {other}")
    second = before.arguments[1].dims[0].symbol
    assert any(s.arguments[0].dims == (Dim(second, times=4),) for s in repairs(before, error))


def conditions(x):
    if x.shape[1] % 2 != 0 or x.dim() != 3:
        raise ValueError("x")
    assert x.size(-1) == 5


def raising(line):
    """What the author raises on a line of this file."""
    number = Path(__file__).read_text().splitlines().index(line) + 1
    return RaisedError("ValueError", "x", (Frame(__file__, number, "", line.strip()),), deliberate=True)


def test_a_condition_of_the_author_is_kept():
    before = state(2)
    n, dims = before.shape(before.arguments[0])[0], before.arguments[0].dims
    found = list(repairs(before, raising('        raise ValueError("x")')))
    assert any(s.arguments[0].dims == (dims[0], replace(dims[1], times=2)) for s in found)
    assert any(len(s.arguments[0].dims) == 3 for s in found)
    assert (n, 5) in [s.shape(s.arguments[0]) for s in repairs(before, raising("    assert x.size(-1) == 5"))]


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
