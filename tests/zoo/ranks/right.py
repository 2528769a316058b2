"""Functions that communicate, each right under the placements of its spec."""

import torch
import torch.distributed as dist
from torch.autograd import Function


def summed(x, group):
    """The sum over the ranks, as a new tensor."""
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y


def gathered(x, group, dim=-1):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def own_chunk(x, group, dim=-1):
    return x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()


class CopyToRegion(Function):
    """Megatron's f: nothing forward, all-reduce backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return summed(g, ctx.group), None


class ReduceFromRegion(Function):
    """Megatron's g: all-reduce forward, nothing backward; its output counts once."""

    @staticmethod
    def forward(ctx, x, group):
        return summed(x, group)

    @staticmethod
    def backward(ctx, g):
        return g, None


class AllReduce(Function):
    """As torch.distributed.nn's: every rank's output counts."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return summed(x, group)

    @staticmethod
    def backward(ctx, g):
        return summed(g, ctx.group), None


class ScatterToRegion(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return own_chunk(x, group)

    @staticmethod
    def backward(ctx, g):
        return gathered(g, ctx.group), None


class GatherFromRegion(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx, g):
        return own_chunk(g, ctx.group), None


class SequenceReduceScatter(Function):
    """Sequence parallelism: partial sums in, a shard of their sum out."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return own_chunk(summed(x, group), group, 0)

    @staticmethod
    def backward(ctx, g):
        return gathered(g, ctx.group, 0), None


class SequenceAllGather(Function):
    """Its output is used by parts of a layer that are parallel: gradients are partial, and are summed."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group, 0)

    @staticmethod
    def backward(ctx, g):
        return own_chunk(summed(g, ctx.group), ctx.group, 0), None


class ColumnParallelLinear(Function):
    """`weight` is a shard of the rows; the gradient of the replicated x is summed."""

    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return x @ weight.t()

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return summed(g @ weight, ctx.group), g.t() @ x, None


class RowParallelLinear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.save_for_backward(x, weight)
        return summed(x @ weight.t(), group) + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x, g.sum(0), None


class VocabularyParallelEmbedding(Function):
    """Each rank has a range of rows; tokens of other ranks give zeros there."""

    @staticmethod
    def forward(ctx, tokens, weight, group):
        first = dist.get_rank(group) * weight.shape[0]
        outside = (tokens < first) | (tokens >= first + weight.shape[0])
        local = (tokens - first).masked_fill(outside, 0)
        ctx.save_for_backward(local, outside)
        ctx.rows = weight.shape[0]
        return summed(weight[local].masked_fill(outside[:, None], 0), group)

    @staticmethod
    def backward(ctx, g):
        local, outside = ctx.saved_tensors
        grad = g.new_zeros(ctx.rows, g.shape[1])
        grad.index_add_(0, local, g.masked_fill(outside[:, None], 0))
        return None, grad, None


class VocabularyParallelCrossEntropy(Function):
    """Logits are shards of the vocabulary."""

    @staticmethod
    def forward(ctx, logits, labels, group):
        size = logits.shape[1]
        largest = logits.max(dim=1).values
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        exps = (logits - largest[:, None]).exp()
        total = summed(exps.sum(1), group)
        local = labels - dist.get_rank(group) * size
        outside = (local < 0) | (local >= size)
        local = local.masked_fill(outside, 0)
        picked = logits.gather(1, local[:, None])[:, 0] - largest
        picked = summed(picked.masked_fill(outside, 0), group)
        ctx.save_for_backward(exps / total[:, None], local, outside)
        return total.log() - picked

    @staticmethod
    def backward(ctx, g):
        softmax, local, outside = ctx.saved_tensors
        grad = softmax.clone()
        rows = torch.arange(len(local))
        grad[rows, local] -= (~outside).to(grad.dtype)
        return grad * g[:, None], None, None


class ExpertAllToAll(Function):
    """Rank r sends r + 1 rows to every rank."""

    @staticmethod
    def forward(ctx, x, sent, received, group):
        ctx.sent, ctx.received, ctx.group = sent, received, group
        y = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(y, x.contiguous(), list(received), list(sent), group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        grad = g.new_empty(sum(ctx.sent), *g.shape[1:])
        dist.all_to_all_single(grad, g.contiguous(), list(ctx.sent), list(ctx.received), group=ctx.group)
        return grad, None, None, None


def passed_on(x, group, step):
    """What the rank `step` before sends, in a ring."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if world == 1:
        return x.clone()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    to, of = (dist.get_global_rank(group, (rank + s) % world) for s in (step, -step))
    ops = [dist.P2POp(dist.isend, x.contiguous(), to, group), dist.P2POp(dist.irecv, y, of, group)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return y


class RingPass(Function):
    """Context parallelism: keys go on to the next rank."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return passed_on(x, group, 1)

    @staticmethod
    def backward(ctx, g):
        return passed_on(g, ctx.group, -1), None


class SyncBatchNorm(Function):
    """Statistics over the batches of all ranks."""

    @staticmethod
    def forward(ctx, x, weight, eps, group):
        count = x.shape[0] * dist.get_world_size(group)
        mean = summed(x.sum(0), group) / count
        variance = summed(((x - mean) ** 2).sum(0), group) / count
        rstd = (variance + eps).rsqrt()
        xhat = (x - mean) * rstd
        ctx.save_for_backward(xhat, weight, rstd)
        ctx.group, ctx.count = group, count
        return xhat * weight

    @staticmethod
    def backward(ctx, g):
        xhat, weight, rstd = ctx.saved_tensors
        dxhat = g * weight
        total = summed(dxhat.sum(0), ctx.group)
        product = summed((dxhat * xhat).sum(0), ctx.group)
        dx = rstd * (dxhat - total / ctx.count - xhat * product / ctx.count)
        return dx, (g * xhat).sum(0), None, None


class HaloExchange(Function):
    """Each rank's row with the last entry of the rank before and the first of the next; zeros at the ends."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        first, last = passed_on(x[-1:], group, 1), passed_on(x[:1], group, -1)
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        before = first if rank > 0 else torch.zeros_like(first)
        after = last if rank < world - 1 else torch.zeros_like(last)
        return torch.cat([before, x, after])

    @staticmethod
    def backward(ctx, g):
        rank, world = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        before = g[:1] if rank > 0 else torch.zeros_like(g[:1])
        after = g[-1:] if rank < world - 1 else torch.zeros_like(g[-1:])
        grad = g[1:-1].clone()
        grad[-1:] += passed_on(before.contiguous(), ctx.group, -1)
        grad[:1] += passed_on(after.contiguous(), ctx.group, 1)
        return grad, None


class Broadcast(Function):
    """The tensor of the first rank for all; gradients go back to it."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        y = x.clone()
        dist.broadcast(y, dist.get_global_rank(group, 0), group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        total = summed(g, ctx.group)
        return total if dist.get_rank(ctx.group) == 0 else torch.zeros_like(total), None


class ReduceToFirst(Function):
    """The sum is known on the first rank alone."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        y = x.clone(memory_format=torch.contiguous_format)
        dist.reduce(y, dist.get_global_rank(group, 0), group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        grad = g.clone(memory_format=torch.contiguous_format)
        dist.broadcast(grad, dist.get_global_rank(ctx.group, 0), group=ctx.group)
        return grad, None


class DataParallelScale(Function):
    """A replicated weight and local batches: each rank has its part of the gradient, and hooks sum them."""

    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, (g * x).sum(0), None


class AveragedInHooks(Function):
    """The same for hooks that take the mean: each rank returns as many times its part as there are ranks."""

    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, (g * x).sum(0) * dist.get_world_size(ctx.group), None


class AsyncWaited(Function):
    """Work goes on while the gradient is reduced; it is waited for."""

    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return x @ weight.t()

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        dx = (g @ weight).contiguous()
        work = dist.all_reduce(dx, group=ctx.group, async_op=True)
        dweight = g.t() @ x
        work.wait()
        return dx, dweight, None


class SumOfTwo(Function):
    """Plain torch inside, second order included: a local sum, reduced by functions that autograd knows."""

    @staticmethod
    def forward(ctx, x, y, group):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x, None


class MixInPlace(Function):
    """Two inputs, of which one is written: x += mean over the ranks of w."""

    @staticmethod
    def forward(ctx, x, w, group):
        ctx.group = group
        total = w.clone()
        dist.all_reduce(total, group=group)
        x.add_(total / dist.get_world_size(group))
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        total = g.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return g, total / dist.get_world_size(ctx.group), None


class SquareInPlace(Function):
    """Squares, summed over the ranks, into the input, which is marked as dirty."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.save_for_backward(x.clone())
        ctx.group = group
        x.mul_(x)
        dist.all_reduce(x, group=group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g = g.contiguous().clone()
        dist.all_reduce(g, group=ctx.group)
        return 2 * x * g, None
