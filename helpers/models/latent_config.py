"""The widths of multi-head latent attention."""

from dataclasses import dataclass
from typing import Self

from helpers.models.ssm_settings import check_sizes


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
