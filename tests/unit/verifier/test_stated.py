"""What the user's own code passes, where some of it is sparse."""

import pytest
import torch

from gradverify.model import Parameter
from gradverify.verifier.collect.inference.objects import Names
from gradverify.verifier.collect.inference.running import Observed
from gradverify.verifier.collect.inference.stated import state_of

VALUES = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
ENTRIES = torch.arange(3)
SPARSE = torch.sparse_coo_tensor(torch.stack([ENTRIES, ENTRIES]), VALUES, (3, 3), check_invariants=True)


def stated(call, given):
    parameters = [Parameter(name, has_default=False, variadic=False) for name in "abc"[: len(call)]]
    return state_of(Observed(call, given, frozenset(), invented=False), parameters, Names(None, ""))


def test_what_it_computes_of_a_sparse_matrix_is_passed_on():
    state = stated((VALUES, ENTRIES, ENTRIES), (SPARSE,))
    assert [a.name for a in state.arguments] == ["a", "b", "c"]


@pytest.mark.parametrize("call", [(SPARSE, VALUES), (SPARSE.to(torch.int64), ENTRIES)])
def test_a_sparse_matrix_itself_cannot_be_said(call):
    assert stated(call, (VALUES,)) is None
