"""The inner half of a double backward of grid_sample; the gradients asked for are the outputs."""

import torch


class Sampled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, grid):
        ctx.save_for_backward(x, grid)
        return torch.nn.functional.grid_sample(x, grid, align_corners=False)

    @staticmethod
    def backward(ctx, grad_output):
        return SampledBackward.apply(grad_output, *ctx.saved_tensors)


class SampledBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, grad_output, x, grid):
        ctx.save_for_backward(grid)
        mask = (ctx.needs_input_grad[1], ctx.needs_input_grad[2])
        return torch.ops.aten.grid_sampler_2d_backward(grad_output, x, grid, 0, 0, False, mask)

    @staticmethod
    def backward(ctx, gx, _):
        (grid,) = ctx.saved_tensors
        assert not ctx.needs_input_grad[2]
        return Sampled.apply(gx, grid), None, None
