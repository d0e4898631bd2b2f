"""Solutions of week 4: tensor and sequence parallel."""

import torch
import torch.distributed as dist


def column_linear(worker, x, weight, bias):
    """Forward: nothing to send (f copies x). Backward: the sum of the ranks' parts."""
    n, rank = worker.world_size, worker.rank
    weight, bias = weight.chunk(n)[rank], bias.chunk(n)[rank]  # (F/N, D), (F/N,)
    y = x @ weight.t() + bias

    def backward(of_y):
        of_x = of_y @ weight
        dist.all_reduce(of_x)
        of_weight = of_y.flatten(0, 1).t() @ x.flatten(0, 1)
        return of_x, of_weight, of_y.sum((0, 1))

    return y, backward


def row_linear(worker, x, weight, bias):
    """Forward: the sum of the ranks' parts (g), then the bias once. Backward: nothing to send."""
    weight = weight.chunk(worker.world_size, dim=1)[worker.rank]  # (D, F/N)
    y = x @ weight.t()
    dist.all_reduce(y)

    def backward(of_y):
        of_weight = of_y.flatten(0, 1).t() @ x.flatten(0, 1)
        return of_y @ weight, of_weight, of_y.sum((0, 1))

    return y + bias, backward


def vocabulary_cross_entropy(worker, logits, targets, start):
    """Three numbers for each token travel: the largest logit, the sum, and the target's logit."""
    largest = logits.amax(-1)  # (B, T)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    shifted = logits - largest[..., None]
    rows, vocabulary = targets - start, logits.shape[-1]
    here = (rows >= 0) & (rows < vocabulary)
    rows = rows.clamp(0, vocabulary - 1)[..., None]
    target = shifted.gather(-1, rows)[..., 0] * here
    sums = torch.stack([shifted.exp().sum(-1), target])
    dist.all_reduce(sums)
    total, target = sums
    counted = targets != -100
    loss = ((total.log() - target) * counted).sum()
    of_logits = shifted.exp() / total[..., None]
    of_logits.scatter_add_(-1, rows, -here[..., None].to(of_logits.dtype))
    return loss, of_logits * counted[..., None]


def sum_partial_gradients(worker, model, cut):
    """Every whole parameter: the norms', and the biases that are added to a rank's tokens."""
    for name, parameter in model.named_parameters():
        if name not in cut and parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def message_bytes(config, sequences, tokens, ranks, way, bytes_per_number):
    """An all-reduce is a reduce-scatter and an all-gather, so count in halves of it."""
    half = (ranks - 1) / ranks * sequences * tokens * config.width * bytes_per_number
    again = 2 if way == "sequence, again" else 0
    recomputed = 4 if config.recompute == "full" else 0
    return half * (8 + again + recomputed)


def activation_bytes(config, sequences, tokens, ranks, way, bytes_per_number):
    """In numbers of B T D: norms 2, inputs 2, then all that is inside the layers, cut over N."""
    e, rows = bytes_per_number, sequences * tokens
    shard = rows if way == "tensor" else rows / ranks
    if config.recompute == "full":
        return e * shard * config.width
    inputs = shard if way == "sequence, again" else rows
    between = e * (2 * shard + 2 * inputs) * config.width
    inside = e * rows * (4 * config.width + 2 * config.inner) / ranks
    scores = e * sequences * config.heads * tokens**2 / ranks
    masks = 2 * shard * config.width if config.dropout else 0
    return between + inside + masks + scores * (config.recompute == "none")
