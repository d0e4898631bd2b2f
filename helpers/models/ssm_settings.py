"""The sizes of the state space mixers, with the defaults of their papers.

D  width of a token's vector     E  channels of the mixer, expand x D     N  state numbers
P  width of a head, Mamba-2      R  rank of Mamba's step sizes
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class MambaSettings:
    """The sizes of a "mamba" mixer (Gu and Dao 2023, arXiv:2312.00752, section 3.4).

    Attributes:
        state: N, numbers of state for each channel.
        expand: E / D.
        convolution: tokens that the causal convolution sees.
        rank: R, of the step sizes' projection; None: D / 16, rounded up.

    Raises:
        ValueError: a size is not a positive whole number.
    """

    state: int = 16
    expand: int = 2
    convolution: int = 4
    rank: int | None = None

    def __post_init__(self):
        check_sizes(self)

    def channels(self, width: int) -> int:
        """E, for a model of this width."""
        return self.expand * width

    def rank_of(self, width: int) -> int:
        """R, for a model of this width."""
        return math.ceil(width / 16) if self.rank is None else self.rank


@dataclass(frozen=True, kw_only=True)
class Mamba2Settings:
    """The sizes of a "mamba2" mixer (Dao and Gu 2024, arXiv:2405.21060, section 7).

    Attributes:
        state: N, numbers of state for each channel.
        expand: E / D.
        convolution: tokens that the causal convolution sees.
        head: P, channels of a head.
        groups: G; the heads of a group share B and C, and the gated norm is over a group.
        chunk: tokens that become one matrix product. It changes the speed, not the result.

    Raises:
        ValueError: a size is not a positive whole number.
    """

    state: int = 128
    expand: int = 2
    convolution: int = 4
    head: int = 64
    groups: int = 1
    chunk: int = 64

    def __post_init__(self):
        check_sizes(self)

    def channels(self, width: int) -> int:
        """E, for a model of this width."""
        return self.expand * width

    def heads(self, width: int) -> int:
        """H, for a model of this width.

        Raises:
            ValueError: heads or groups do not divide.
        """
        channels = self.channels(width)
        if channels % self.head:
            raise ValueError(
                f"mamba2 heads of {self.head} channels do not divide {channels} channels "
                f"({self.expand} x a width of {width}): choose another head or width"
            )
        heads = channels // self.head
        if heads % self.groups:
            raise ValueError(
                f"{self.groups} mamba2 groups do not divide {heads} heads: choose a number of "
                "groups that does"
            )
        return heads


def check_sizes(settings, names: Iterable[str] | None = None):
    """Check that each size is a positive whole number, or None where that is the default.

    Args:
        settings: a dataclass.
        names: of the fields that are sizes; None: all.
    """
    for field in fields(settings):
        size = getattr(settings, field.name)
        optional = size is None and field.default is None
        if optional or (names is not None and field.name not in names):
            continue
        if not isinstance(size, int) or size < 1:
            raise ValueError(
                f"{type(settings).__name__}: {field.name} must be a positive whole number, "
                f"not {size!r}"
            )


MAMBA, MAMBA2 = MambaSettings(), Mamba2Settings()  # as published
