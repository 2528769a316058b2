"""The same Functions, each with one mistake that only ranks have."""

import os

import torch
import torch.distributed as dist
from right import gathered, own_chunk, passed_on, summed
from torch.autograd import Function


class CopyWithoutReduction(Function):
    """The gradient of a replicated tensor stays each rank's own part."""

    @staticmethod
    def forward(ctx, x, group):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g, None


class ReducedTwice(Function):
    """The output counts once, and its gradient is summed as if each rank's counted."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return summed(x, group)

    @staticmethod
    def backward(ctx, g):
        return summed(g, ctx.group), None


class AllReduceWithoutReduction(Function):
    """Every output counts, and only the own one is felt."""

    @staticmethod
    def forward(ctx, x, group):
        return summed(x, group)

    @staticmethod
    def backward(ctx, g):
        return g, None


class AveragedGradient(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return summed(g, ctx.group) / dist.get_world_size(ctx.group), None


class ScatterLosesOthers(Function):
    """The chunks of other ranks get no gradient."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, ctx.width = group, x.shape[-1]
        return own_chunk(x, group)

    @staticmethod
    def backward(ctx, g):
        grad = g.new_zeros(*g.shape[:-1], ctx.width)
        own_chunk_of = grad.chunk(dist.get_world_size(ctx.group), -1)[dist.get_rank(ctx.group)]
        own_chunk_of.copy_(g)
        return grad, None


class GatherGivesFirstChunk(Function):
    """Every rank is given the gradient of the first rank's shard."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx, g):
        return g.chunk(dist.get_world_size(ctx.group), -1)[0].contiguous(), None


class GatherAlongOtherDimension(Function):
    """The chunks of the gradient are cut along the wrong dimension."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx, g):
        world = dist.get_world_size(ctx.group)
        rows = own_chunk(g, ctx.group, 0)
        return rows.reshape(g.shape[0], g.shape[1] // world), None


class SequenceGatherForgetsToSum(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group, 0)

    @staticmethod
    def backward(ctx, g):
        return own_chunk(g, ctx.group, 0), None


class ColumnParallelWithoutReduction(Function):
    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x, None


class ColumnParallelReducesBoth(Function):
    """The gradient of the shards is summed, too."""

    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return x @ weight.t()

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return summed(g @ weight, ctx.group), summed(g.t() @ x, ctx.group), None


class RowParallelBiasOnEachRank(Function):
    """The bias is added before the sum over the ranks."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.save_for_backward(x, weight)
        return summed(x @ weight.t() + bias, group)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x, g.sum(0), None


class EmbeddingOfOtherRanks(Function):
    """Tokens of other ranks add to row 0."""

    @staticmethod
    def forward(ctx, tokens, weight, group):
        first = dist.get_rank(group) * weight.shape[0]
        outside = (tokens < first) | (tokens >= first + weight.shape[0])
        local = (tokens - first).masked_fill(outside, 0)
        ctx.save_for_backward(local)
        ctx.rows = weight.shape[0]
        return summed(weight[local].masked_fill(outside[:, None], 0), group)

    @staticmethod
    def backward(ctx, g):
        (local,) = ctx.saved_tensors
        return None, g.new_zeros(ctx.rows, g.shape[1]).index_add_(0, local, g), None


class RingTheSameWay(Function):
    """The gradient goes on in the same direction."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return passed_on(x, group, 1)

    @staticmethod
    def backward(ctx, g):
        return passed_on(g, ctx.group, 1), None


class SyncBatchNormLocalStatistics(Function):
    """Backward forgets that the mean is that of all ranks."""

    @staticmethod
    def forward(ctx, x, weight, eps, group):
        count = x.shape[0] * dist.get_world_size(group)
        mean = summed(x.sum(0), group) / count
        variance = summed(((x - mean) ** 2).sum(0), group) / count
        rstd = (variance + eps).rsqrt()
        xhat = (x - mean) * rstd
        ctx.save_for_backward(xhat, weight, rstd)
        ctx.group = group
        return xhat * weight

    @staticmethod
    def backward(ctx, g):
        xhat, weight, rstd = ctx.saved_tensors
        dxhat = g * weight
        dx = rstd * (dxhat - dxhat.mean(0) - xhat * (dxhat * xhat).mean(0))
        return dx, (g * xhat).sum(0), None, None


class HaloDropsNeighbours(Function):
    @staticmethod
    def forward(ctx, x, group):
        first, last = passed_on(x[-1:], group, 1), passed_on(x[:1], group, -1)
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        before = first if rank > 0 else torch.zeros_like(first)
        after = last if rank < world - 1 else torch.zeros_like(last)
        return torch.cat([before, x, after])

    @staticmethod
    def backward(ctx, g):
        return g[1:-1].clone(), None


class ReducesOnFirstRankAlone(Function):
    """Only rank 0 enters the collective of backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return summed(x, group)

    @staticmethod
    def backward(ctx, g):
        return summed(g, ctx.group) if dist.get_rank(ctx.group) == 0 else g, None


class ReducesWhereLarge(Function):
    """Whether a collective is entered depends on a rank's own values."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        ctx.save_for_backward(x)
        return summed(x, group)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if x.sum() > 0:  # to count how many are large: the gradient is right wherever all ranks agree
            summed(torch.ones(1), ctx.group)
        return g, None


class OtherOrderOnOddRanks(Function):
    """Two collectives in another order on every other rank."""

    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return x @ weight.t()

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        dx, dweight = g @ weight, (g.t() @ x).contiguous()
        if dist.get_rank(ctx.group) % 2:
            dist.broadcast(dweight, dist.get_global_rank(ctx.group, 0), group=ctx.group)
            return summed(dx, ctx.group), dweight, None
        dx = summed(dx, ctx.group)
        dist.broadcast(dweight, dist.get_global_rank(ctx.group, 0), group=ctx.group)
        return dx, dweight, None


class RaisesOnOneRank(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return summed(x, group)

    @staticmethod
    def backward(ctx, g):
        if dist.get_rank(ctx.group) == 1:
            raise RuntimeError("no gradient here")
        return summed(g, ctx.group), None


class EndsOneRank(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return summed(x, group)

    @staticmethod
    def backward(ctx, g):
        if dist.get_rank(ctx.group) == 1:
            os._exit(3)
        return g, None


class NotWaitedFor(Function):
    """The reduction of the gradient has begun when it is returned."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g, group=ctx.group, async_op=True)
        return g, None


class IgnoresGroup(Function):
    """Forward uses the group that it was given, backward the world."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g, None


class SourceIsNoGlobalRank(Function):
    """`src` counts in the world, and not in the group."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        y = x.clone()
        dist.broadcast(y, 0, group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        total = summed(g, ctx.group)
        return total if dist.get_rank(ctx.group) == 0 else torch.zeros_like(total), None


class ForwardNotReduced(Function):
    """A replicated output that is each rank's own."""

    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x, None


class ReducesGradOutputInPlace(Function):
    """The caller's grad_output is overwritten."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        dist.all_reduce(g, group=ctx.group)
        return g, None


class ReducesInputInPlace(Function):
    """The caller's tensor is overwritten, and nobody says so."""

    @staticmethod
    def forward(ctx, x, group):
        dist.all_reduce(x, group=group)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g, None


class TakesGradOutputForContiguous(Function):
    """A gather into memory that is read as if it were the gradient's."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return own_chunk(x, group, 0)

    @staticmethod
    def backward(ctx, g):
        world = dist.get_world_size(ctx.group)
        memory = torch.as_strided(g, (g.numel(),), (1,), g.storage_offset()).clone()
        parts = [torch.empty_like(memory) for _ in range(world)]
        dist.all_gather(parts, memory, group=ctx.group)
        return torch.cat(parts).view(world * g.shape[0], *g.shape[1:]), None


class BothReceiveFirst(Function):
    """Each rank waits for what the other one sends afterwards."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return passed_on(x, group, 1)

    @staticmethod
    def backward(ctx, g):
        rank, world = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        grad = torch.empty_like(g, memory_format=torch.contiguous_format)
        dist.recv(grad, dist.get_global_rank(ctx.group, (rank + 1) % world), group=ctx.group)
        dist.send(g.contiguous(), dist.get_global_rank(ctx.group, (rank - 1) % world), group=ctx.group)
        return grad, None


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


class WritesUnmarked(SquareInPlace):
    """Writes into its input, and returns a copy."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.save_for_backward(x.clone())
        ctx.group = group
        x.mul_(x)
        dist.all_reduce(x, group=group)
        return x.clone()


class MissesSumInPlace(SquareInPlace):
    """Marked as dirty, and its backward does not sum over the ranks."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g, None
