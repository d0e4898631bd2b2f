"""A decoder-only Transformer, to be read at a sitting. One process; not one line of distribution.

B  sequences in a batch        D  width of a token's vector    V  different tokens
T  tokens in a sequence        F  inner width of the MLP
"""

from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.nn import functional

from helpers.models.attention import Attention, Cache, Positions, Rotary, again
from helpers.models.config import GPTConfig
from helpers.models.dropout import counter, dropout
from helpers.models.initialization import initialize

__all__ = ["GPT", "GPTConfig", "build", "loss_sum"]


def build(
    config: GPTConfig,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **stage,
) -> "GPT":
    """A model with its first parameters: the same for a seed, in any process and dtype.

    Args:
        stage: which part of the model, as for GPT; the whole if not given.
    """
    model = GPT(config, dtype=dtype, device="meta", seed=seed, **stage).to_empty(device=device)
    initialize(model, seed)
    return model


class GPT(nn.Module):
    """Tokens (B, T) in, logits (B, T, V) out: at each place, of the token that follows.

    A stage of a pipeline is a GPT too: it has some of the blocks, under their numbers in the whole
    model, and the embedding or the head if it is the first or the last. The first takes tokens, the
    others what the stage before gave, (B, T, D); the last gives logits, the others (B, T, D).

    Args:
        seed: of dropout's masks.
        blocks: the numbers of its blocks; None for all.
        first, last: whether it has the embedding, and the last norm and the head.
    """

    def __init__(
        self,
        config: GPTConfig,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        seed: int = 0,
        blocks: Iterable[int] | None = None,
        first: bool = True,
        last: bool = True,
    ):
        super().__init__()
        self.config, self.seed, place = config, seed, {"dtype": dtype, "device": device}
        self.first, self.last = first, last
        if first:
            self.embedding = nn.Embedding(config.vocab, config.width, **place)
            if config.positions == "learned":
                self.positions = nn.Embedding(config.context, config.width, **place)
        numbers = range(config.layers) if blocks is None else blocks
        self.blocks = nn.ModuleDict({str(n): Block(config, n, **place) for n in numbers})
        if config.positions == "rotary":
            self.rotary = Rotary(config, **place)
        if last:
            self.norm = make_norm(config, **place)
            self.head = nn.Linear(config.width, config.vocab, bias=False, **place)
            self.criterion = CrossEntropy()
        self.tie()

    def tie(self):
        """The head's matrix is the embedding's, where both are here."""
        if self.config.tied and self.first and self.last:
            self.head.weight = self.embedding.weight

    def _apply(self, fn, recurse=True):  # what moves and casts: it makes parameters anew
        super()._apply(fn, recurse)
        self.tie()
        return self

    def plain_name(self, name: str) -> str:
        """What the whole model calls its parameter `name`: a last stage's tied head has another."""
        return "embedding.weight" if name == "head.weight" and self.config.tied else name

    def loss(self, batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss summed over the batch's targets, in nats, and how many they are.

        Args:
            batch: a `helpers.data.batch.Batch`: tokens, targets, numbers, step.
        """
        positions = self.locate(batch.tokens, numbers=batch.numbers, step=batch.step)
        return self.criterion(self(batch.tokens, positions), batch.targets)

    def forward(
        self,
        x: torch.Tensor,
        positions: Positions | None = None,
        caches: Mapping[int, Cache] | None = None,
    ) -> torch.Tensor:
        positions = positions or self.locate(x)
        if self.first:
            x = self.embed(x, positions)  # (B, T, D)
        for number, block in self.blocks.items():
            cache = caches[int(number)] if caches else None
            if self.config.recompute == "full" and self.training:
                x = again(block, x, positions, cache)
            else:
                x = block(x, positions, cache)
        return self.head(self.norm(x)) if self.last else x  # (B, T, V) or (B, T, D)

    def locate(
        self,
        x: torch.Tensor,
        places: torch.Tensor | None = None,
        numbers: torch.Tensor | None = None,
        step: int = 0,
    ) -> Positions:
        """Where the tokens of a batch stand.

        Args:
            x: the model's input: (B, T) or (B, T, D).
            places: of the tokens in their sequence, (T,) or (B, T); None for 0 … T-1.
            numbers: (B,), the sequences' numbers in the global batch; None for 0 … B-1.
            step: of the training.

        Raises:
            ValueError: more tokens than the context holds.
        """
        config, (sequences, length) = self.config, x.shape[:2]
        if length > config.context:
            raise ValueError(f"{length} tokens, and the context holds {config.context}")
        rotary = config.positions == "rotary"
        angles = self.rotary(length if places is None else places) if rotary else None
        if places is None:
            places = torch.arange(length, device=x.device)
        key = None
        if config.dropout and self.training:
            if numbers is None:
                numbers = torch.arange(sequences, device=x.device)
            key = counter(self.seed, step, numbers[:, None], places)  # (B, T)
        return Positions(places=places, angles=angles, key=key)

    def embed(self, tokens: torch.Tensor, positions: Positions) -> torch.Tensor:
        x = self.embedding(tokens)
        if self.config.positions == "learned":
            x = x + self.positions(positions.places)
        return drop(x, self.config, positions, site=0)


class Block(nn.Module):
    """A mixer, which lets tokens see each other, and an MLP, each added to what came in.

    The mixer stands under its kind's name: a name like `blocks.3.attention.out.weight` says what
    the block is.

    Args:
        number: the block's, in the whole model.
    """

    def __init__(self, config: GPTConfig, number: int, **place):
        super().__init__()
        self.config, self.number, self.kind = config, number, config.mixer_of(number)
        self.add_module(f"{self.kind}_norm", make_norm(config, **place))
        self.add_module(self.kind, MIXERS[self.kind](config, **place))
        self.mlp_norm = make_norm(config, **place)
        self.mlp = MLPS[config.mlp](config, **place)

    def forward(self, x: torch.Tensor, positions: Positions, cache: Cache | None = None):
        norm, mixer = getattr(self, f"{self.kind}_norm"), getattr(self, self.kind)
        y = mixer(norm(x), positions, cache)  # (B, T, D)
        x = x + drop(y, self.config, positions, site=2 * self.number + 1)
        y = self.mlp(self.mlp_norm(x))
        return x + drop(y, self.config, positions, site=2 * self.number + 2)


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


MIXERS = {"attention": Attention}
MLPS = {"swiglu": SwiGLU, "gelu": GELU}


class CrossEntropy(nn.Module):
    """Logits and targets in, `loss_sum` out. A module, so that it can be replaced."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor):
        return loss_sum(logits, targets)


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


def make_norm(config: GPTConfig, **place) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.norm_eps, **place)
    return nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.bias, **place)


def drop(x: torch.Tensor, config: GPTConfig, positions: Positions, site: int) -> torch.Tensor:
    """Dropout of (B, T, D), where there is any; `site` is its number in the whole model."""
    if positions.key is None:
        return x
    return dropout(x, config.dropout, counter(positions.key, site))
