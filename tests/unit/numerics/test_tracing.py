"""What a recorded graph computes is what the function computes, at other values too."""

import forked_command
import pytest
import torch
from torch.utils import _pytree

from gradverify.verifier.numerics.tracing import functional_graph, recorded_graph
from gradverify.verifier.suggest.graph import decompositions

HELD = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def writes(x, y):
    """In place, through views, with constants of its own and of others."""
    z = x.clone()
    z[:, 0] = y
    z += torch.tensor(2.0, dtype=torch.float64).add_(y.sum())
    z.view(-1)[:4].mul_(HELD)
    return z


def structures(x, y):
    largest, where = x.max(dim=1)
    left, right = x.chunk(2, 1)
    return {"softmax": torch.softmax(x, -1), "rest": [largest, (left.sum() * y, right)]}, where, 3, None


def composite(x, y):
    return torch.nn.functional.layer_norm(x @ x, (4,)).sin() + torch.nn.functional.gelu(y)


def slopes(x, y):
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(composite(x, y).sum(), x)


def drawn(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((4, 4), (4,))]


def tensors(value):
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("record", [functional_graph, recorded_graph])
@pytest.mark.parametrize("function", [writes, structures, composite])
def test_a_graph_computes_what_was_recorded_at_other_values(record, function):
    graph = record(function, drawn(0))
    for seed in (0, 1):
        given = drawn(seed)
        kept = [t.clone() for t in given]
        torch.testing.assert_close(tensors(graph(*given)), tensors(function(*given)))
        assert all(map(torch.equal, given, kept))


def test_a_functional_graph_has_no_operation_in_place():
    targets = {n.target for n in functional_graph(writes, drawn(0)).graph.nodes if n.op == "call_function"}
    assert targets
    assert not any(target._schema.is_mutable for target in targets)


def test_operations_of_autograd_are_recorded_and_written_out():
    joint = recorded_graph(slopes, drawn(0))
    graph = functional_graph(joint, drawn(0), decompositions())
    names = {str(n.target) for n in graph.graph.nodes}
    assert not any("native_layer_norm" in name or "gelu_backward" in name for name in names)
    assert "aten.to.dtype" not in names  # what an operation is written out as is recorded as its own parts
    torch.testing.assert_close(graph(*drawn(1)), slopes(*drawn(1)))


def test_what_autocast_has_kept_is_no_constant_of_the_graph():
    x, weight = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.mm(x, weight)  # its cast of the weight is kept
        graph = recorded_graph(torch.mm, [x, weight])
    assert torch.equal(graph(x, 3 * weight.detach()).float(), torch.full((2, 2), 6.0))


def test_what_a_graph_cannot_hold_raises():
    with pytest.raises(TypeError):
        functional_graph(lambda x, y: (x, object()), drawn(0))


def test_no_compiler_is_loaded(tmp_path):
    program = (
        "import sys, torch\n"
        "from gradverify.verifier.numerics.tracing import functional_graph\n"
        "functional_graph(lambda x: (x * 2).sum(), [torch.ones(3)])\n"
        "print(sorted({'torch._dynamo', 'torch._inductor'} & sys.modules.keys()))\n"
    )
    assert forked_command.python(["-c", program], tmp_path).out == "[]\n"
