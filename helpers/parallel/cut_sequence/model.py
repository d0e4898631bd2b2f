"""Context parallelism: every rank has some of a sequence's tokens, and all parameters.

Embeddings, norms, MLPs and the head see one token at a time. Only mixers look at other tokens:

    attention   all earlier keys and values: `ring_attention`, or another way
    mamba       the last tokens of the rank before, for the convolution; and its state, for the scan

B  sequences        t  tokens of this rank's part        E  channels
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import nn

from helpers.comm.halo import previous_tokens
from helpers.comm.messages import Peers
from helpers.comm.transport import GroupTransport
from helpers.data.batch import Batch
from helpers.models.attention import Attention, Positions
from helpers.models.convolution import Convolution
from helpers.models.experts.layer import Router
from helpers.models.gpt import GPT
from helpers.models.latent import LatentAttention
from helpers.models.mamba import Mamba
from helpers.models.mamba2 import Mamba2
from helpers.parallel.cut_sequence.collective import Grid, usp
from helpers.parallel.cut_sequence.ring import ring_attention
from helpers.parallel.cut_sequence.scans import selective_scan_over_ranks, ssd_over_ranks
from helpers.parallel.transform import Placed, plain
from helpers.plans.sequence_order import Documents, Order, Part, contiguous, length, zigzag

AXIS = "cp"
SCANS = {Mamba: selective_scan_over_ranks, Mamba2: ssd_over_ranks}
NO_CACHE = "a cut sequence has no cache: call the model without one"


def context_parallel(
    config,
    seed: int,
    mesh,
    dtype: torch.dtype,
    *,
    attention: Callable[..., torch.Tensor] | None = None,
    order: Order | None = None,
    inner: Callable[..., Placed] = plain,
    axis: str | tuple[str, str] = AXIS,
) -> Placed:
    """Cut every sequence over an axis, as a transform.

    Recipe(transform=context_parallel, owner=Zero1)(config, 0, make_mesh(Layout(dp=2, cp=2)))
    partial(context_parallel, axis=("ring", "heads"))    # USP on Layout(ring=2, heads=2)

    Each rank gets the sequences of its data axes, and takes some of their tokens. So gradients,
    losses and numbers of targets are partial sums over this axis too.

    Args:
        config, seed, mesh, dtype: as for any transform of a Recipe.
        attention: `ring_attention`, `ulysses` or `gathered_attention`; on two axes `usp`. None:
            `ring_attention`, or `usp`. Each computes block by block, whatever `config.attention`
            is.
        order: `contiguous`, `zigzag` or `striped`; None: zigzag, which is balanced, with documents
            too, if all mixers are attention; else contiguous, which scans need. With Ulysses, every
            order is balanced.
        inner: the transform that makes the model, such as `tensor_parallel`.
        axis: of the ranks that share a sequence, in its order. Two axes, in the layout's order:
            that of a ring, and that of the ranks which exchange heads.

    Raises:
        ValueError: as for `cut_sequence`; the layout does not have the two axes in this order; or a
            scan needs a group along both, and `make_mesh` was not asked for it.
    """
    placed = inner(config, seed, mesh, dtype)
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    if (axis not in mesh.layout.axes and len(axes) == 1) or mesh.layout.size(*axes) == 1:
        return placed
    if mesh.layout.known(axes) != axes:
        raise ValueError(f"{mesh.layout.title()} has the axes {axes} in another order: ring, heads")
    model = placed.model
    if order is None:
        order = contiguous if scanned(model) else zigzag
    ring, *heads = (GroupTransport(mesh.group(one)) for one in axes)
    cut = Cut(Grid(ring, *heads) if heads else ring, order)
    both = heads and scanned(model)
    peers = GroupTransport(mesh.group(*axes)) if both else cut.peers
    cut_sequence(model, peers, cut, attention or (usp if heads else ring_attention))
    sum_counts(model, [ring, *heads])
    return replace(
        placed,
        sums=(*placed.sums, *axes),
        loss_sums=(*placed.loss_sums, *axes),
        take=lambda batch: cut.take(placed.take(batch)),
    )


class Cut:
    """Which tokens of the batch that it took last each rank has.

    Attributes:
        parts: of all ranks. With packed documents: those of the first sequence; other sequences'
            have the same lengths.
    """

    def __init__(self, peers: Peers | Grid, order: Order = contiguous):
        self.peers, self.order = peers, order
        self.cut = lru_cache(maxsize=64)(lambda tokens: order(tokens, peers.size))
        self.parts: list[Part] = self.cut(0)

    def take(self, batch: Batch) -> Batch:
        """Take this rank's tokens, and their targets: (B, T) to (B, t)."""
        rows = batch.documents or (batch.tokens.shape[1],)
        self.parts = self.cut(rows[0])
        own = torch.stack([self.places(batch.tokens.device, self.cut(row)) for row in rows])
        own = own.expand(len(batch), -1)  # (B, t)
        taken = {name: getattr(batch, name).gather(1, own) for name in batch.TENSORS}
        return replace(batch, **taken)

    def places(
        self, device: torch.device | str, parts: Sequence[Part] | None = None
    ) -> torch.Tensor:
        """The places of this rank's tokens in their sequence, (t,)."""
        own = [place for piece in (parts or self.parts)[self.peers.rank] for place in piece]
        return torch.tensor(own, dtype=torch.int64, device=device)

    def locate(
        self, model: GPT, plain_locate, x: torch.Tensor, places=None, documents=None, **options
    ) -> Positions:
        """Compute the positions of this rank's tokens: rotary angles and dropout go by places."""
        whole, context = sum(map(length, self.parts)), model.config.context
        if places is not None:
            raise ValueError(NO_CACHE)
        if whole > context:
            raise ValueError(f"a sequence has {whole} tokens, but the context allows {context}")
        places = self.places(x.device)
        if documents:
            places = torch.stack([self.places(x.device, self.cut(row)) for row in documents])
        return plain_locate(x, places, documents=documents, **options)


class CutCore(nn.Module):
    """Attention's core, which computes this rank's part of the result."""

    def __init__(self, attention: Callable[..., torch.Tensor], cut: Cut):
        super().__init__()
        self.attention, self.cut = attention, cut

    def forward(
        self, q, k, v, seen=None, documents: Sequence[Documents] | None = None
    ) -> torch.Tensor:
        """Compute (B, H, t, w), as `ring_attention`; with documents, one sequence at a time."""
        if seen is not None:
            raise ValueError(NO_CACHE)
        if not documents:
            return self.attention(q, k, v, self.cut.parts, self.cut.peers)
        rows = []
        for row, lengths in enumerate(documents):
            own = [one[row : row + 1] for one in (q, k, v)]
            of = self.cut.cut(lengths), self.cut.peers
            rows.append(self.attention(*own, *of, documents=lengths))
        return torch.cat(rows)


def sum_counts(model: GPT, transports: Sequence[GroupTransport]):
    """Let the routers of experts balance whole sequences.

    Raises:
        ValueError: the experts have a capacity, for which a token needs the choices before it.
    """

    def total(counts: torch.Tensor) -> torch.Tensor:
        for transport in transports:
            transport.all_reduce(counts).wait()
        return counts

    for module in model.modules():
        if isinstance(module, Router):
            if module.settings.capacity is not None:
                raise ValueError("a cut sequence has no capacity of experts: use capacity=None")
            module.total = total


def scanned(model: GPT) -> bool:
    """Whether a mixer is a state space model: of the whole model, also if this is a stage of it."""
    return not {"mamba", "mamba2"}.isdisjoint(model.config.mixers)


def cut_sequence(
    model: GPT,
    peers: Peers,
    cut: Cut | None = None,
    attention: Callable[..., torch.Tensor] = ring_attention,
) -> GPT:
    """Let the model see its input as this rank's part of a longer sequence. It changes the model.

    A forward gives this rank's part of the logits. After a backward of every rank's loss sum, a
    parameter's gradient is the sum of all ranks' gradients. All ranks call forward and backward.

    Args:
        peers: the ranks that share the sequence, in its order.
        cut: says which tokens are this rank's. None, for parts of any length: all mixers are mamba
            or mamba2, and the model has no positions.
        attention: as for `context_parallel`.

    Raises:
        ValueError: the model needs a cut; or a scan's tokens are not in the contiguous order.
    """
    config = model.config
    if cut is None and (config.positions != "none" or {*config.mixers} - {"mamba", "mamba2"}):
        raise ValueError(
            f"attention and positions ({config.positions}) need to know which tokens a rank has: "
            "use context_parallel, or give a Cut"
        )
    if cut is not None and cut.order is not contiguous and scanned(model):
        raise ValueError(
            "a scan needs neighbouring tokens: choose order=contiguous for a model with mamba or "
            "mamba2; its attention is balanced in this order by attention=ulysses"
        )
    for module in list(model.modules()):
        if isinstance(module, Attention | LatentAttention):
            module.core = CutCore(attention, cut)
        if type(module) in SCANS:
            module.over_tokens = partial(SCANS[type(module)], peers=peers)
            for name, child in list(module.named_children()):
                if isinstance(child, Convolution):
                    setattr(module, name, CutConvolution(child, peers))
    if cut is not None:
        model.locate = partial(cut.locate, model, model.locate)
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
            raise ValueError(NO_CACHE)
        halo = previous_tokens(x, self.weight.shape[1] - 1, self.peers)
        return Convolution.forward(self, x, halo)
