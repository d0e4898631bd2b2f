"""Tensor and sequence parallelism as transforms of a plain GPT.

Recipe(transform=tensor_parallel)    # activations are whole on every rank
Recipe(transform=sequence_parallel)  # activations are cut by tokens between the layers
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from helpers.comm.transport import GroupTransport
from helpers.models.attention import FanOut, Positions
from helpers.models.experts.layer import Mixture
from helpers.parallel.tensor.layers import (
    Column,
    ColumnParallel,
    RowParallel,
)
from helpers.parallel.tensor.mamba2 import join_norm
from helpers.parallel.tensor.placement import placed
from helpers.parallel.tensor.regions import Sharded, Whole
from helpers.parallel.tensor.vocabulary import VocabularyCrossEntropy, VocabularyEmbedding
from helpers.parallel.transform import DATA, Placed, plain
from helpers.state.part import Part
from helpers.state.placing import pending

AXIS = "tp"


def tensor_parallel(config, seed, mesh, dtype, **options):
    """Cut each layer over the axis "tp"; between the layers every rank has all activations.

    Args:
        config, seed, mesh, dtype: as for any transform of a Recipe.
        options: as for `cut_over`.

    Raises:
        ValueError: the heads do not divide over the ranks, or a mixer cannot be cut.
    """
    return cut_over(AXIS, Whole, config, seed, mesh, dtype, **options)


def sequence_parallel(config, seed, mesh, dtype, *, again: bool = True, chunks: int = 1, **options):
    """As `tensor_parallel`; between the layers a rank has some of the tokens.

    Args:
        again: gather each layer's input again in the backward, instead of keeping it.
        chunks: cut each message and the matrix product beside it into so many chunks, so that they
            overlap; needs `overlap`.

    Raises:
        ValueError: also, in a forward, a sequence whose tokens do not divide over the ranks.
    """
    region = partial(Sharded, again=again, chunks=chunks)
    return cut_over(AXIS, region, config, seed, mesh, dtype, **options)


def cut_over(
    axis: str,
    region: Callable[[GroupTransport], Whole],
    config,
    seed: int,
    mesh,
    dtype: torch.dtype,
    *,
    transport: Callable[..., GroupTransport] = GroupTransport,
    overlap: bool = True,
    data: tuple[str, ...] = DATA,
) -> Placed:
    """Build the plain model on "meta", cut its parameters, and replace the modules that send.

    Args:
        region: Whole or Sharded.
        transport: sends the activations; called with the process group of the axis.
        overlap: send gradients while weights' gradients are computed.
        data: as for `plain`.
    """
    whole = plain(config, seed, mesh, dtype, data=data)
    if axis not in mesh.layout.axes or mesh.layout.size(axis) == 1:
        return whole
    model = whole.model
    parts = cut_parameters(model, mesh, axis)
    around = region(transport(mesh.group(axis)))
    # each replacement keeps the parameters' names, so the parts fit afterwards too
    fan_out = ColumnParallel(around, overlap)
    for module in list(model.modules()):
        if isinstance(getattr(module, "fan_out", None), FanOut):
            module.fan_out = fan_out
    for block in model.blocks.values():
        mixer = getattr(block, block.kind)
        mixer.out = RowParallel(mixer.out, around, overlap)
        if block.kind == "mamba2":
            join_norm(mixer.gated_norm, around.transport)
        if block.routed:
            enter_once(block.mlp, around)
        elif model.config.mlp != "none":
            block.mlp.down = RowParallel(block.mlp.down, around, overlap)
    if model.first:
        start = first_row(parts["embedding.weight"])
        model.embedding = VocabularyEmbedding(model.embedding, start, around)
    if model.last:
        name = "head.weight" if "head.weight" in parts else "embedding.weight"
        start = first_row(parts[name])
        model.criterion = VocabularyCrossEntropy(start, model.config.vocab, around.transport)
        if overlap:  # a unit of its own, if it is not tied: an owner waits for its hooks
            model.head, model.fan_out = Column(model.head, fan_out), FanOut()
    model.tie()
    if around.partial:
        model.locate = partial(locate, model.locate, around)
        parts = {name: share_of_tokens(mesh, part, axis) for name, part in parts.items()}
    return replace(whole, parts=parts)


def cut_parameters(model: nn.Module, mesh, axis: str) -> dict[str, Part]:
    """Give each parameter its local shape; a frozen parameter stays frozen. The parts, by name."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    parts = placed(mesh, model.config, shapes, axis)
    for name, parameter in dict(model.named_parameters()).items():
        shape = parts[name].local_shape
        if shape != parameter.shape:
            path, _, leaf = name.rpartition(".")
            module = model.get_submodule(path)
            cut = nn.Parameter(parameter.new_empty(shape), parameter.requires_grad)
            setattr(module, leaf, cut)
    model.tie()
    return parts


def first_row(part: Part) -> int:
    """The plain tensor's row that is this rank's first."""
    ranges = part.ranges(0)
    return ranges[0][0] if ranges else 0


def share_of_tokens(mesh, part: Part, axis: str) -> Part:
    """A replicated parameter that sees some of the tokens: its gradient is a partial sum."""
    known = part.pending or any(axis in one.axes for one in part.cuts)
    return part if known else pending(mesh, part, axis)


def enter_once(mixture: Mixture, around: Whole):
    """Cut a mixture's experts, shared ones too, by their inner width: one sum for all.

    The router sees all tokens on every rank. A rank's gates have the gradient of its partial sums,
    so the router's gradient is partial too; and each rank has its share of the router's own losses.
    """
    ranks = around.transport.size

    def share_of_losses(_, given, found):
        if found.extra is None:
            return found
        whole = found.extra.detach()
        return replace(found, extra=whole + (found.extra - whole) / ranks)

    if mixture.shared is not None:
        mixture.shared.fan_out = FanOut()  # its input has entered already
    mixture.register_forward_pre_hook(lambda _, given: around.enter(*given))
    mixture.register_forward_hook(lambda _, given, y: around.leave(y))
    mixture.router.register_forward_hook(share_of_losses)


def locate(plain_locate: Callable[..., Positions], around: Whole, x, *args, **options) -> Positions:
    """The positions of a batch: rotary angles of all tokens, the rest for this rank's tokens."""
    positions = plain_locate(x, *args, **options)
    own = around.own(x.shape[1])
    key = None if positions.key is None else positions.key[:, own]
    return replace(positions, places=positions.places[..., own], key=key)
