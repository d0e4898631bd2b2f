"""A decoder-only Transformer, to be read at a sitting. One process; not one line of distribution.

B  sequences in a batch        D  width of a token's vector    H  query heads
T  tokens in a sequence        F  inner width of the MLP       K  key/value heads, K divides H
V  different tokens            d  width of a head, D/H
"""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from helpers.models.config import GPTConfig
from helpers.models.initialization import initialize

__all__ = ["GPT", "GPTConfig", "build", "loss_sum"]


def build(
    config: GPTConfig,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> "GPT":
    """A model with its first parameters: the same for a seed, in any process and dtype."""
    model = GPT(config, dtype=dtype, device=device)
    initialize(model, seed)
    return model


def loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The cross entropy summed over the targets, in nats, and how many they are.

    A mean over ranks or micro-batches with unequal counts must divide by the count of all of them.

    Args:
        logits: (B, T, V); reduced in float32 at least.
        targets: (B, T); -100 where there is none.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    return loss, (targets != -100).sum()


class GPT(nn.Module):
    """Tokens (B, T) in, logits (B, T, V) out: at each place, of the token that follows."""

    def __init__(self, config: GPTConfig, dtype=torch.float32, device="cpu"):
        super().__init__()
        self.config, place = config, {"dtype": dtype, "device": device}
        self.embedding = nn.Embedding(config.vocab, config.width, **place)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.context, config.width, **place)
        self.blocks = nn.ModuleList(Block(config, **place) for _ in range(config.layers))
        self.norm = make_norm(config, **place)
        self.head = nn.Linear(config.width, config.vocab, bias=False, **place)
        if config.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)  # (B, T, D)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(self.norm(x))  # (B, T, V)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        if length > self.config.context:
            raise ValueError(f"{length} tokens, and the context holds {self.config.context}")
        x = self.embedding(tokens)
        if self.config.positions == "learned":
            x = x + self.positions.weight[:length]
        return x

    def run(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if self.config.recompute == "full" and self.training:
            return again(block, x)
        return block(x)


class Block(nn.Module):
    """Attention, then the MLP, each added to what came in."""

    def __init__(self, config: GPTConfig, **place):
        super().__init__()
        self.attention_norm = make_norm(config, **place)
        self.attention = Attention(config, **place)
        self.mlp_norm = make_norm(config, **place)
        self.mlp = (SwiGLU if config.mlp == "swiglu" else GELU)(config, **place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))  # (B, T, D)
        return x + self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    """Causal self-attention; H/K query heads share a key/value head (Ainslie et al. 2023)."""

    def __init__(self, config: GPTConfig, **place):
        super().__init__()
        self.config, d = config, config.head_width
        place["bias"] = config.bias
        self.query = nn.Linear(config.width, config.heads * d, **place)
        self.key = nn.Linear(config.width, config.key_heads * d, **place)
        self.value = nn.Linear(config.width, config.key_heads * d, **place)
        self.out = nn.Linear(config.heads * d, config.width, **place)
        if config.positions == "rotary":
            cos, sin = rotary_table(config.context, d, config.rotary_base)
            for name, table in (("cos", cos), ("sin", sin)):
                table = table.to(place["device"], place["dtype"])
                self.register_buffer(name, table, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        d = self.config.head_width
        q, k, v = (
            project(x).unflatten(-1, (-1, d)).transpose(1, 2)  # (B, H or K, T, d)
            for project in (self.query, self.key, self.value)
        )
        if self.config.positions == "rotary":
            q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        if self.config.recompute == "selective" and self.training:
            y = again(self.core, q, k, v)
        else:
            y = self.core(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, D)

    def core(self, q, k, v) -> torch.Tensor:
        """softmax(q kᵀ / √d) v below the diagonal: (B, H, T, d)."""
        grouped = self.config.key_heads != self.config.heads
        if self.config.attention == "sdpa":
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=grouped
            )
        if grouped:
            shared = self.config.heads // self.config.key_heads
            k, v = (t.repeat_interleave(shared, dim=1) for t in (k, v))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (B, H, T, T): T² numbers a head
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


class SwiGLU(nn.Module):
    """Two matrices up, of which one gates the other, and one down (Shazeer 2020)."""

    def __init__(self, config: GPTConfig, **place):
        super().__init__()
        self.gate = nn.Linear(config.width, config.inner, bias=config.bias, **place)
        self.up = nn.Linear(config.width, config.inner, bias=config.bias, **place)
        self.down = nn.Linear(config.inner, config.width, bias=config.bias, **place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))  # (B, T, F) inside


class GELU(nn.Module):
    """One matrix up and one down, as in GPT-2."""

    def __init__(self, config: GPTConfig, **place):
        super().__init__()
        self.up = nn.Linear(config.width, config.inner, bias=config.bias, **place)
        self.down = nn.Linear(config.inner, config.width, bias=config.bias, **place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))  # (B, T, F) inside


def make_norm(config: GPTConfig, **place) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.norm_eps, **place)
    return nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.bias, **place)


def rotary_table(length: int, d: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of each place's angles, (length, d/2) each, in float64."""
    frequencies = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)  # (d/2,)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair (i, i + d/2) of a head by its place's angle: (B, heads, T, d)."""
    cos, sin = cos[: x.shape[-2]], sin[: x.shape[-2]]  # (T, d/2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def again(function, *inputs):
    """Keep the inputs alone, and compute the rest again in the backward (Chen et al. 2016)."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
