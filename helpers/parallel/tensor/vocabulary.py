"""Embedding and cross-entropy that are cut by vocabulary: each rank has the rows of some tokens.

B  sequences        T  tokens of a sequence        D  width of a token's vector
N  ranks            V  vocabulary
"""

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from helpers.data.batch import IGNORED
from helpers.parallel.tensor.regions import Whole


class VocabularyEmbedding(nn.Module):
    """An embedding with some of the rows: other tokens' vectors are zero here, and are summed.

    Args:
        embedding: has this rank's rows, (V/N, D).
        start: the token of its first row.
        region: where the vectors go.
    """

    def __init__(self, embedding: nn.Embedding, start: int, region: Whole):
        super().__init__()
        self.weight, self.start, self.region = embedding.weight, start, region
        self.vocab = embedding.num_embeddings  # V, of all ranks together

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, T) to (B, T or t, D).

        Raises:
            RuntimeError: a token is outside the vocabulary. No rank has it, so the sum would be a
                vector of zeros, without an error.
        """
        check_range(tokens, self.vocab, "token")
        rows, here = local(tokens, self.start, len(self.weight))
        if not len(self.weight):
            # a sum over no rows: zeros, which autograd knows, so that this rank joins the backward
            vectors = self.weight.sum(0).expand(*tokens.shape, -1)
        else:
            vectors = functional.embedding(rows, self.weight)
            vectors = vectors.masked_fill(~here[..., None], 0)
        return self.region.leave(vectors)


class VocabularyCrossEntropy(nn.Module):
    """The cross-entropy of logits that are cut by vocabulary: the whole logits are nowhere.

    Two small all-reduces: of the largest logits, B T numbers; then of the sums of the exponentials
    and the targets' logits, 2 B T numbers.

    Source: Shoeybi et al. 2019, section 3, sends the losses instead of the logits.

    Args:
        start: the token of this rank's first logit.
        vocab: V, of all ranks together.
        transport: of the axis.
    """

    def __init__(self, start: int, vocab: int, transport):
        super().__init__()
        self.start, self.vocab, self.transport = start, vocab, transport

    def forward(self, logits: torch.Tensor, targets: torch.Tensor):
        """(B, T, V/N) and (B, T): the loss summed over the targets, in nats, and their number.

        Raises:
            RuntimeError: a target is outside the vocabulary, and is not `IGNORED`. No rank has its
                logit, so the loss would be too large, without an error.
        """
        check_range(targets.masked_fill(targets == IGNORED, 0), self.vocab, "target")
        logits = logits if logits.dtype == torch.float64 else logits.float()
        loss = _CrossEntropy.apply(logits, targets, self.start, self.transport)
        return loss, (targets != IGNORED).sum()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, start, transport):
        rows, here = local(targets, start, logits.shape[-1])
        counted = targets != IGNORED
        if not targets.numel():
            ctx.save_for_backward(logits, rows, here, counted)
            return logits.new_zeros(())
        if logits.shape[-1]:
            largest = logits.amax(-1)  # (B, T)
        else:
            largest = logits.new_full(targets.shape, -torch.inf)
        transport.maximum(largest).wait()
        exponentials = (logits - largest[..., None]).exp()  # (B, T, V/N)
        sums = torch.stack([exponentials.sum(-1), torch.zeros_like(largest)])
        if logits.shape[-1]:
            chosen = logits.gather(-1, rows[..., None])[..., 0] - largest
            sums[1] = chosen.masked_fill(~here, 0)
        transport.all_reduce(sums).wait()
        total, target = sums
        ctx.save_for_backward(exponentials.div_(total[..., None]), rows, here, counted)
        return (total.log() - target).masked_fill(~counted, 0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        softmax, rows, here, counted = ctx.saved_tensors
        if not softmax.numel():
            return softmax.new_zeros(softmax.shape), None, None, None
        result = softmax.scatter_add(-1, rows[..., None], -here[..., None].to(softmax.dtype))
        return result * (gradient * counted)[..., None], None, None, None


def local(tokens: torch.Tensor, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens as rows of this rank's table, and whether they are there; 0 where they are not."""
    rows = tokens - start
    here = (rows >= 0) & (rows < count)
    return rows.masked_fill(~here, 0), here


def check_range(tokens: torch.Tensor, vocab: int, what: str):
    """Refuse tokens that no rank has. On CUDA the device raises later, and nothing waits here."""
    known = ((tokens >= 0) & (tokens < vocab)).all()
    torch._assert_async(known, f"a {what} is outside the vocabulary of {vocab}")
