import torch


class Spectrum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.fft.fft(x).abs()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.fft.ifft(grad_output * torch.fft.fft(x)).real
