"""What a user writes without gradverify: slow gradcheck and gradgradcheck, once for each base case."""

import functions
import torch
from torch.autograd import gradcheck, gradgradcheck

torch.set_num_threads(1)
torch.manual_seed(0)


def r(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def unit(*shape):
    return torch.rand(*shape, dtype=torch.float64).mul(0.8).add(0.1).requires_grad_()


def away(*shape):
    x = torch.randn(*shape, dtype=torch.float64)
    return (x + 0.1 * x.sign()).requires_grad_()


def index(high, *shape):
    return torch.randint(high, shape)


INPUTS = {
    "Linear": (r(8, 16), r(12, 16), r(12)),
    "MatMul": (r(4, 6, 8), r(4, 8, 5)),
    "LayerNorm": (r(8, 32), r(32), r(32), 1e-5),
    "RMSNorm": (r(8, 32), r(32), 1e-6),
    "BatchNorm": (r(16, 12), r(12), r(12)),
    "GELU": (r(8, 32),),
    "SiLU": (r(8, 32),),
    "SwiGLU": (r(8, 20), r(8, 20)),
    "Mish": (r(8, 32),),
    "Sigmoid": (r(8, 32),),
    "Tanh": (r(8, 32),),
    "ReLU": (away(8, 32),),
    "LeakyReLU": (away(8, 32), 0.1),
    "Softplus": (r(8, 32),),
    "Softmax": (r(8, 24),),
    "LogSoftmax": (r(8, 24),),
    "LogSumExp": (r(8, 24),),
    "MeanSquaredError": (r(8, 20), r(8, 20)),
    "HuberLoss": (r(8, 20), r(8, 20), 1.0),
    "CrossEntropy": (r(12, 20), index(20, 12)),
    "KLDivergence": (r(8, 16), r(8, 16)),
    "CosineSimilarity": (r(8, 16), r(8, 16)),
    "Normalize": (r(8, 24),),
    "CumulativeSum": (r(8, 24),),
    "DecayScan": (r(8, 12), unit(8, 12)),
    "Embedding": (r(24, 12), index(24, 20)),
    "Gather": (r(8, 24), index(24, 8, 10)),
    "Attention": (r(2, 8, 6), r(2, 10, 6), r(2, 10, 6)),
    "Conv1d": (r(2, 3, 16), r(4, 3, 3), 1),
    "Rotary": (r(8, 24), r(8, 12)),
}
ONCE = {"BatchNorm", "DecayScan"}
"""once_differentiable: gradgradcheck would raise."""

if __name__ == "__main__":
    for name, inputs in INPUTS.items():
        gradcheck(getattr(functions, name).apply, inputs)
        if name not in ONCE:
            gradgradcheck(getattr(functions, name).apply, inputs)
