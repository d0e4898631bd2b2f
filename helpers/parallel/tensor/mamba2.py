"""Mamba-2 cut by heads over an axis: which rows a rank has, and the one sum that its norm needs.

E  channels     H  heads     G  groups of heads that share B and C     N  ranks on the axis

A rank has H/N heads: their channels, steps, decays and states. So a scan needs no message. With
G ≥ N, a rank has whole groups. With one group, every rank computes B and C, and their gradient is
a sum over the ranks. The gated norm is over a group's channels: with one group, the ranks add
their sums of squares, one number per token.

Source: Dao and Gu 2024, arXiv:2405.21060, section 8.1. There, each rank has a group of its own, so
that the norm needs no message either.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from helpers.comm import regions
from helpers.comm.transport import GroupTransport
from helpers.models.config import GPTConfig
from helpers.models.mamba2 import GatedNorm
from helpers.state.part import Part
from helpers.state.placing import HasSeat, cut, pending

ROWS, COLUMNS = 0, 1  # dims of a weight (out, in)
BY_HEADS = ("inner", "gate", "delta", "convolution", "gated_norm")
BY_GROUPS = ("B", "C", "convolution_B", "convolution_C")


def rules_of(config: GPTConfig, seat: HasSeat, axis: str) -> dict[str, Callable[[Part], Part]]:
    """How to cut a parameter, by the end of its name."""
    rows = partial(cut, seat, dim=ROWS, axis=axis)
    groups = rows if config.mamba2.groups > 1 else partial(shared, seat, axis)
    rules = {"mamba2.A_log": rows, "mamba2.skip": rows}
    for names, rule in ((BY_HEADS, rows), (BY_GROUPS, groups)):
        rules |= {f"mamba2.{name}.{kind}": rule for name in names for kind in ("weight", "bias")}
    return rules | {"mamba2.out.weight": partial(cut, seat, dim=COLUMNS, axis=axis)}


def shared(seat: HasSeat, axis: str, part: Part) -> Part:
    """Every rank has all rows, but uses them for its own heads: the gradient is a partial sum."""
    every = [[(0, part.shape[ROWS])]] * seat.layout.size(axis)
    return pending(seat, cut(seat, part, ROWS, axis, every), axis)


def check_heads(config: GPTConfig, ranks: int):
    """Check that the ranks have whole heads, and whole groups or all the same one.

    Raises:
        ValueError: they do not.
    """
    heads, groups = config.mamba2.heads(config.width), config.mamba2.groups
    if heads % ranks:
        raise ValueError(
            f"{heads} mamba2 heads do not divide over {ranks} ranks: the mixer is cut by heads, so "
            "choose a number of ranks that divides the heads"
        )
    if groups > 1 and groups % ranks:
        raise ValueError(
            f"{groups} mamba2 groups on {ranks} ranks: a rank needs whole groups, or all ranks "
            "share one. Choose one group, or a number of ranks that divides the groups"
        )


class SumOverRanks(nn.Module):
    """Sum a tensor over the ranks; each rank's gradient is the sum of all ranks' gradients."""

    def __init__(self, transport: GroupTransport):
        super().__init__()
        self.transport = transport

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return regions.copy_to(regions.reduce_from(x, self.transport), self.transport)


def join_norm(norm: GatedNorm, transport: GroupTransport):
    """Let the ranks that share a group add their sums of squares."""
    if len(norm.weight) < norm.width:
        norm.over_ranks = SumOverRanks(transport)
