"""A computation recorded in float32 runs in float64, its casts with it."""

import torch

from gradverify.verifier.numerics.tracing import functional_graph, promoted


def test_casts_constants_and_buffers_become_float64():
    def kernel(x):
        assert x.dtype is torch.float32
        total = torch.zeros(x.shape[0], dtype=torch.float32)
        total += (x.bfloat16().float() * torch.tensor([0.5, 2.0, 1.0])).sum(dim=-1)
        return torch.softmax(total, dim=0, dtype=torch.float32)

    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    graph = promoted(functional_graph(kernel, [x.float()]))
    exact = torch.softmax((x * torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)).sum(dim=-1), dim=0)
    found = graph(x)
    assert found.dtype is torch.float64
    assert torch.allclose(found, exact, rtol=1e-13)
