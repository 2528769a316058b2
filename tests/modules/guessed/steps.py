"""A number for each step is meant; forward takes a row for each as well."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class StepsOfTime(Function):
    """A vector of times is meant; forward takes rows of times as well, and multiplies entry by entry."""

    @staticmethod
    def forward(ctx, y0, t, w):
        ys = [y0]
        for k in range(len(t) - 1):
            ys.append(ys[-1] + (t[k + 1] - t[k]) * torch.tanh(ys[-1] * w))
        ys = torch.stack(ys)
        ctx.save_for_backward(t, w, ys)
        return ys

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        t, w, ys = ctx.saved_tensors
        of_y, of_t, of_w = g[-1], torch.zeros_like(t), torch.zeros_like(w)
        for k in reversed(range(len(t) - 1)):
            f = torch.tanh(ys[k] * w)
            step = (of_y * f).sum()
            of_t[k + 1] += step
            of_t[k] -= step
            of_z = of_y * (t[k + 1] - t[k]) * (1 - f * f)
            of_w = of_w + of_z * ys[k]
            of_y = of_y + of_z * w + g[k]
        return of_y, of_t, of_w


class StepsOfTimeHalved(StepsOfTime):
    """The same, wrong for a vector, too."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        of_y, of_t, of_w = StepsOfTime.backward.__wrapped__(ctx, g)
        return of_y, of_t / 2, of_w


class DecayedStates(Function):
    """A number for each step is meant twice: the strength of a write, and how fast the state decays."""

    @staticmethod
    def forward(ctx, k, v, beta, decay):
        state, states, outs = v.new_zeros(k.shape[1], v.shape[1]), [], []
        for i in range(k.shape[0]):
            states.append(state)
            state = state * decay[i] + beta[i] * torch.outer(k[i], v[i])
            outs.append(state)
        ctx.save_for_backward(k, v, beta, decay, torch.stack(states))
        return torch.stack(outs)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        k, v, beta, decay, states = ctx.saved_tensors
        of_k, of_v, of_beta, of_decay = (torch.zeros_like(t) for t in (k, v, beta, decay))
        of_state = torch.zeros_like(states[0])
        for i in reversed(range(k.shape[0])):
            of_state = of_state + g[i]
            of_beta[i] = k[i] @ of_state @ v[i]
            of_k[i] = beta[i] * (of_state @ v[i])
            of_v[i] = beta[i] * (k[i] @ of_state)
            of_decay[i] = (of_state * states[i]).sum()
            of_state = of_state * decay[i]
        return of_k, of_v, of_beta, of_decay
