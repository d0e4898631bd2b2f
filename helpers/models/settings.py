"""The sizes of the mixers: latent attention, Mamba and Mamba-2, with the defaults of their papers.
And the settings of a mixture of experts.

D  width of a token's vector     E  channels of the mixer, expand x D     N  state numbers
P  width of a head, Mamba-2      R  rank of Mamba's step sizes
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self


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


@dataclass(frozen=True, kw_only=True)
class Latent:
    """The widths of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Each query and each key has two pieces: `nope` numbers without a position, and `rope` numbers
    that are rotated by their place.

    Attributes:
        kv_rank: d_c, the width of the latent that keys and values are made from.
        query_rank: d'_c, the width of the latent that queries are made from; None: queries are
            made from the token's vector itself.
        nope: a head's width in queries and keys, without a position.
        rope: d_h^R, the rotated width in queries, and of the one key that all heads share.
        value: a head's width in values.

    Raises:
        ValueError: a width is not a positive whole number, `rope` is odd, or `value` is wider than
            queries and keys.
    """

    kv_rank: int
    query_rank: int | None = None
    nope: int
    rope: int
    value: int

    def __post_init__(self):
        check_sizes(self)
        if self.rope % 2:
            raise ValueError(f"rotary positions turn pairs, so rope must be even, not {self.rope}")
        if self.value > self.nope + self.rope:
            raise ValueError(
                f"values of width {self.value}, but queries and keys have {self.nope} + "
                f"{self.rope}: the fused kernel needs values that are not wider. Make `value` "
                "smaller"
            )

    @classmethod
    def of(cls, head_width: int) -> Self:
        """Choose the widths from a head's width d, as DeepSeek-V2 has them for d = 128.

        kv_rank 4 d, rope d/2 (made even), nope and value d (section 3.1.2); queries uncompressed.
        """
        d = head_width
        return cls(kv_rank=4 * d, nope=d, rope=max(2, d // 4 * 2), value=d)


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


SCORES, PRODUCTS = ("softmax", "sigmoid"), ("loop", "grouped")


@dataclass(frozen=True, kw_only=True)
class ExpertSettings:
    """A mixture of experts, in place of a block's MLP. The defaults are Mixtral's, with their k.

    Attributes:
        count: E, the number of routed experts.
        chosen: k, the experts that a token goes to.
        hidden: an expert's inner width; None: that of the MLP it replaces.
        shared: the number of experts that every token goes to (DeepSeekMoE, arXiv:2401.06066,
            section 3.2). They are one MLP, so many times as wide.
        after: the first blocks, so many, have an MLP.
        score: of a token and all experts: "softmax", or "sigmoid" (DeepSeek-V3, arXiv:2412.19437,
            equation 15).
        normalized: whether the gates of a token's experts sum to `scale`.
        scale: multiplies the gates.
        groups: G. Neighbouring experts, E/G of them, are on one node.
        limit: M, the nodes that a token's experts may be on; None: all. The nodes with the largest
            sums of the k/M best scores win (DeepSeek-V3, section 2.1.2).
        capacity: in training, an expert takes at most capacity x k T / E tokens of a sequence,
            rounded up; it drops later ones. None: it takes all ("dropless").
        loss_rate: alpha, of the auxiliary loss that balances each sequence (section 2.1.2).
        bias_rate: gamma. After a step, each expert's bias for the choice moves by so much, up if
            the expert got fewer tokens than the mean, else down (section 2.1.2). 0: no bias.
        z_rate: of the router's z-loss (Zoph et al. 2022, arXiv:2202.08906, equation 5).
        product: "loop", a product for each expert; or "grouped", PyTorch's `grouped_mm`, which
            knows no float64.

    Raises:
        ValueError: a value is out of its range, or sizes do not divide each other.
    """

    count: int
    chosen: int = 2
    hidden: int | None = None
    shared: int = 0
    after: int = 0
    score: str = "softmax"
    normalized: bool = True
    scale: float = 1.0
    groups: int = 1
    limit: int | None = None
    capacity: float | None = None
    loss_rate: float = 0.0
    bias_rate: float = 0.0
    z_rate: float = 0.0
    product: str = "loop"

    def __post_init__(self):
        check_sizes(self, ("count", "chosen", "hidden", "groups", "limit"))
        for name, choices in (("score", SCORES), ("product", PRODUCTS)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}"
                )
        for name in ("shared", "after", "loss_rate", "bias_rate", "z_rate"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)!r}")
        if self.scale <= 0 or (self.capacity is not None and self.capacity <= 0):
            raise ValueError("scale and capacity must be positive")
        if self.count % self.groups:
            raise ValueError(f"{self.groups} groups do not divide {self.count} experts")
        if self.limit is not None and self.limit > self.groups:
            raise ValueError(f"a limit of {self.limit} groups, but there are {self.groups}")
        if self.chosen > self.reachable:
            raise ValueError(
                f"a token chooses {self.chosen} of {self.reachable} experts: choose fewer, or "
                "allow more groups"
            )
        if self.chosen == 1 and self.normalized:
            raise ValueError(
                "one expert's gate, normalized, is always 1, so the router would get no gradient: "
                "use normalized=False"
            )

    @property
    def regulated(self) -> bool:
        """Whether a loss of the router, or a moving bias, is beside the model's own loss."""
        return any((self.loss_rate, self.z_rate, self.bias_rate))

    @property
    def reachable(self) -> int:
        """The number of experts among which a token chooses."""
        return self.count // self.groups * (self.groups if self.limit is None else self.limit)


MAMBA, MAMBA2 = MambaSettings(), Mamba2Settings()  # as published
