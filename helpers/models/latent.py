"""Multi-head latent attention: the cache keeps a small latent instead of keys and values.

B  sequences in a batch        H  heads                        c  width of the latent, d_c
T  tokens in a sequence        n  nope: width without place    r  rope: rotated width
S  keys per sequence           v  width of a head's values     D  width of a token's vector

Source: DeepSeek-V2, arXiv:2405.04434, section 2.1. The norms of the two latents are of section
3.1.2.
"""

import torch
from torch import nn
from torch.nn import functional

from helpers.models.attention import Core, FanOut, Positions, again, last_of, rotate
from helpers.models.caches.cache import BlockCache, Kept, RotaryPart
from helpers.models.shape import GPTShape


class LatentAttention(nn.Module):
    """Causal self-attention whose keys and values are made from a latent of width c.

    Without a cache it makes the keys and values of all tokens. With a cache it makes them from the
    latents, or it reads the latents themselves: whichever costs fewer FLOPs.
    """

    def __init__(self, config: GPTShape, **place):
        super().__init__()
        self.config, self.widths = config, config.latent_widths
        w, heads, eps = self.widths, config.heads, config.norm_eps
        bias = {"bias": config.bias, **place}
        plain = {"bias": False, **place}  # a product of two matrices has no room for a bias between
        self.fan_out = FanOut()
        if w.query_rank is not None:
            self.query_down = nn.Linear(config.width, w.query_rank, **bias)  # W^DQ
            self.query_norm = nn.RMSNorm(w.query_rank, eps=eps, **place)
        query_input = w.query_rank or config.width
        self.query = nn.Linear(query_input, heads * (w.nope + w.rope), **plain)  # W^UQ and W^QR
        self.down = nn.Linear(config.width, w.kv_rank, **bias)  # W^DKV
        self.latent_norm = nn.RMSNorm(w.kv_rank, eps=eps, **place)
        self.rotary_key = nn.Linear(config.width, w.rope, **bias)  # W^KR
        self.key = nn.Linear(w.kv_rank, heads * w.nope, **plain)  # W^UK
        self.value = nn.Linear(w.kv_rank, heads * w.value, **plain)  # W^UV
        self.core = PaddedCore(config.attention)
        self.out = nn.Linear(heads * w.value, config.width, **bias)  # W^O

    @staticmethod
    def kept(config: GPTShape) -> Kept:
        """Say what the block keeps of each token: its latent, and the rotated key of all heads."""
        w, rotary = config.latent_widths, None
        if config.positions == "rotary":
            rotary = RotaryPart(tensor=1, query=w.nope, width=w.rope, base=config.rotary_base)
        return Kept(per_token=((1, w.kv_rank), (1, w.rope)), rotary=rotary)

    def forward(self, x: torch.Tensor, positions: Positions, cache: BlockCache | None = None):
        first = self.query if self.widths.query_rank is None else self.query_down
        q, latent, shared = self.fan_out(x, first, self.down, self.rotary_key)
        if self.widths.query_rank is not None:
            q = self.query(self.query_norm(q))
        q = q.unflatten(-1, (self.config.heads, -1))  # (B, T, H, n + r)
        latent = self.latent_norm(latent).unsqueeze(-2)  # (B, T, 1, c)
        shared = shared.unsqueeze(-2)  # (B, T, 1, r)
        if positions.angles is not None:
            nope, rope = q.split([self.widths.nope, self.widths.rope], -1)
            q = torch.cat([nope, rotate(rope, *positions.angles)], -1)
            shared = rotate(shared, *positions.angles)
        q, latent, shared = (t.transpose(1, 2) for t in (q, latent, shared))
        if cache is not None:
            y = cache.attend(self.cheaper, q, latent, shared)
        elif self.config.recompute == "selective" and self.training:
            y = again(self.core, q, *self.expand(latent, shared), None, positions.documents)
        else:
            y = self.core(
                q, *self.expand(latent, shared), None, positions.documents
            )  # (B, H, T, v)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, D)

    def expand(self, latent: torch.Tensor, shared: torch.Tensor):
        """Make keys (B, H, S, n + r) and values (B, H, S, v).

        Args:
            latent: (B, 1, S, c).
            shared: the rotated key, (B, 1, S, r).
        """
        latent = latent.squeeze(1)  # (B, S, c)
        k, v = (
            up(latent).unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
            for up in (self.key, self.value)
        )
        return torch.cat([k, shared.expand(-1, self.config.heads, -1, -1)], -1), v

    def cheaper(self, q: torch.Tensor, latent: torch.Tensor, shared: torch.Tensor, seen):
        """Attend in the form that needs fewer FLOPs. Shapes as for `expand` and `Core`."""
        if absorbing_is_cheaper(self.widths, q.shape[2], latent.shape[2]):
            return self.absorbed(q, latent, shared, seen)
        return self.core(q, *self.expand(latent, shared), seen)

    def absorbed(self, q: torch.Tensor, latent: torch.Tensor, shared: torch.Tensor, seen):
        """Attend without making keys or values: (B, H, T, v).

        q · (W k) is (Wᵀ q) · k, so each head's queries move into the space of the latents, and its
        result moves out of it (section 2.1.2). All heads read the same latents, as in multi-query
        attention.

        Args:
            q: (B, H, T, n + r).
            latent, shared: (B, 1, S, c) and (B, 1, S, r).
            seen: as for `Core`.
        """
        widths, (_, heads, tokens, _), keys = self.widths, q.shape, latent.shape[2]
        nope, rope = q.split([widths.nope, widths.rope], -1)
        key = self.key.weight.unflatten(0, (heads, -1))  # (H, n, c)
        value = self.value.weight.unflatten(0, (heads, -1))  # (H, v, c)
        moved = (nope @ key).flatten(1, 2)  # (B, H T, c)
        latent, shared = latent.squeeze(1), shared.squeeze(1)  # (B, S, c), (B, S, r)
        scores = moved @ latent.mT + rope.flatten(1, 2) @ shared.mT  # (B, H T, S)
        scores = scores.unflatten(1, (heads, tokens)) * q.shape[-1] ** -0.5
        if seen is None and tokens > 1:
            seen = last_of(tokens, keys, q.device)
        if seen is not None:
            scores = scores.masked_fill(~seen, float("-inf"))
        read = scores.softmax(-1).flatten(1, 2) @ latent  # (B, H T, c)
        return read.unflatten(1, (heads, tokens)) @ value.mT


def absorbing_is_cheaper(widths, tokens: int, keys: int) -> bool:
    """Compare the FLOPs of T queries and S keys, for one head.

    Making keys and values costs S c (n + v), and reading them T S (n + r + v). Reading the latents
    costs T S (2 c + r), and moving the queries and results T c (n + v).
    """
    w = widths
    expanded = keys * w.kv_rank * (w.nope + w.value) + tokens * keys * (w.nope + w.rope + w.value)
    absorbed = tokens * w.kv_rank * (w.nope + w.value) + tokens * keys * (2 * w.kv_rank + w.rope)
    return absorbed < expanded


class PaddedCore(Core):
    """`Core` for values that are narrower than the keys.

    PyTorch's fused kernel for the CPU needs equal widths. So it gets values with zeros behind them.
    """

    def forward(self, q, k, v, seen=None, documents=None):
        extra = q.shape[-1] - v.shape[-1]
        if self.kind != "sdpa" or not extra:
            return super().forward(q, k, v, seen, documents)
        y = super().forward(q, k, functional.pad(v, (0, extra)), seen, documents)
        return functional.pad(y, (0, -extra))  # a copy: nothing keeps the zeros
