import torch


class RoIPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, rois, argmax, scale):
        raise NotImplementedError("built without the kernel")

    @staticmethod
    def backward(ctx, grad_output):
        raise NotImplementedError("built without the kernel")
