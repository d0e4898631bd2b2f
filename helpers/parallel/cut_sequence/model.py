"""Context parallelism of Mamba blocks: every rank has some of the tokens, and all parameters.

Embeddings, norms, MLPs and the head see one token at a time. Only two steps of a block look at
earlier tokens: the causal convolution, which needs the last tokens of the rank before, and the
scan.

B  sequences        t  tokens of this rank's part        E  channels
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from helpers.comm.halo import previous_tokens
from helpers.comm.messages import Peers
from helpers.data.batch import Batch, part
from helpers.models.attention import Positions
from helpers.models.convolution import Convolution
from helpers.models.gpt import GPT
from helpers.models.mamba import Mamba
from helpers.models.mamba2 import Mamba2
from helpers.parallel.cut_sequence.scans import selective_scan_over_ranks, ssd_over_ranks
from helpers.parallel.transform import DATA, Placed, plain

AXIS = "cp"
SCANS = {Mamba: selective_scan_over_ranks, Mamba2: ssd_over_ranks}


def context_parallel(
    config, seed: int, mesh, dtype: torch.dtype, *, axis: str = AXIS, data=DATA
) -> Placed:
    """Cut every sequence over an axis: the transform of a model of Mamba blocks.

    Recipe(transform=context_parallel, owner=Zero1)(config, 0, make_mesh(Layout(dp=2, cp=2)))

    Each rank gets the sequences of its `data` axes, and takes some of their tokens. So gradients,
    losses and numbers of targets are partial sums over this axis too.

    Args:
        config, seed, mesh, dtype: as for any transform of a Recipe.
        axis: of the ranks that share a sequence, in its order.
        data: as for `plain`.

    Raises:
        ValueError: as for `cut_sequence`.
    """
    placed = plain(config, seed, mesh, dtype, data=data)
    if axis not in mesh.layout.axes or mesh.layout.size(axis) == 1:
        return placed
    cut = Cut(Peers(mesh.group(axis)))
    model = cut_sequence(placed.model, cut.peers)
    model.locate = partial(cut.locate, model.locate)
    sums = (*placed.sums, axis)
    return replace(placed, sums=sums, loss_sums=sums, take=cut.take)


class Cut:
    """This rank's tokens of the batch that it took last.

    Attributes:
        start: the place of the first of them in its sequence. Dropout goes by the places.
    """

    def __init__(self, peers: Peers):
        self.peers, self.start = peers, 0

    def take(self, batch: Batch) -> Batch:
        """Take this rank's tokens, and their targets: (B, T) to (B, t)."""
        own = part(batch.tokens.shape[1], self.peers.rank, self.peers.size)
        self.start = own.start
        return replace(batch, tokens=batch.tokens[:, own], targets=batch.targets[:, own])

    def locate(self, plain_locate, x: torch.Tensor, places=None, **options) -> Positions:
        """The positions of this rank's tokens."""
        if places is None:
            places = torch.arange(self.start, self.start + x.shape[1], device=x.device)
        return plain_locate(x, places, **options)


def cut_sequence(model: GPT, peers: Peers) -> GPT:
    """Let the model see its input as this rank's part of a longer sequence. It changes the model.

    A forward gives this rank's part of the logits. After a backward of every rank's loss sum, a
    parameter's gradient is the sum of all ranks' gradients. All ranks call forward and backward.

    Args:
        model: its mixers are all "mamba" or "mamba2", and it has no positions.
        peers: the ranks that share the sequence, in its order.

    Raises:
        ValueError: the model has attention, or positions: a part does not begin at place 0.
    """
    config = model.config
    if others := {kind for kind in config.mixers if kind not in ("mamba", "mamba2")}:
        raise ValueError(
            f"the model has the mixers {', '.join(sorted(others))}: only mamba and mamba2 can work "
            "on a cut sequence"
        )
    if config.positions != "none":
        raise ValueError(f'the model has {config.positions} positions: choose positions="none"')
    for module in list(model.modules()):
        if type(module) in SCANS:
            module.over_tokens = partial(SCANS[type(module)], peers=peers)
            for name, child in list(module.named_children()):
                if isinstance(child, Convolution):
                    setattr(module, name, CutConvolution(child, peers))
    return model


class CutConvolution(nn.Module):
    """A causal convolution whose first outputs see the last tokens of the rank before."""

    def __init__(self, convolution: Convolution, peers: Peers):
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias  # the same names
        self.peers = peers

    def forward(
        self,
        x: torch.Tensor,
        before: torch.Tensor | None = None,
        counts: Sequence[int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute as `Convolution.forward` does; `before` is only for a first rank.

        Raises:
            ValueError: `before` or `counts`: a cut sequence has no cache.
        """
        if before is not None or counts is not None:
            raise ValueError("a cut sequence has no cache: call the model without one")
        halo = previous_tokens(x, self.weight.shape[1] - 1, self.peers)
        return Convolution.forward(self, x, halo)
