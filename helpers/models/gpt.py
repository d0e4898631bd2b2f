"""A decoder-only Transformer, short to read. One process, without any distribution.

B  sequences in a batch        D  width of a token's vector    V  different tokens
T  tokens in a sequence        F  inner width of the MLP
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import nn
from torch.nn import functional

from helpers.models.attention import Attention, FanOut, Positions, Rotary, again
from helpers.models.caches.cache import BlockCache, Cache, Kept
from helpers.models.dropout import counter, dropout
from helpers.models.experts.layer import Mixture
from helpers.models.initialization import build, first_value
from helpers.models.latent import LatentAttention
from helpers.models.mamba import Mamba
from helpers.models.mamba2 import Mamba2
from helpers.models.mlp import MLPS
from helpers.models.shape import GPTShape

__all__ = ["GPT", "GPTConfig", "build", "kept_by", "loss_sum"]


class GPTConfig(GPTShape):
    """The configuration of a GPT: its shape, and how to build it. See `GPTShape` for the values."""

    def build(self, dtype: torch.dtype = torch.float32, device="cpu", **stage) -> "GPT":
        """Make the model, or a stage of it (as for GPT), without filling its parameters."""
        return GPT(self, dtype, device, **stage)

    def first_value(self, name: str, shape, seed: int) -> torch.Tensor:
        """Make the whole initial tensor of the parameter with this name, in float64."""
        return first_value(name, shape, seed, self.layers)


class GPT(nn.Module):
    """Compute logits (B, T, V) from tokens (B, T): at each place, for the next token.

    A stage of a pipeline is a GPT too. It has some of the blocks, under their numbers in the whole
    model. The first stage has the embedding, and its input is tokens (B, T). The last stage has the
    head, and its output is logits (B, T, V). Between stages, inputs and outputs are (B, T, D).

    Args:
        seed: of dropout's masks.
        blocks: the numbers of this stage's blocks; None for all.
        first: whether this stage has the embedding.
        last: whether this stage has the last norm and the head.
    """

    def __init__(
        self,
        config: GPTShape,
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
            self.fan_out = FanOut()
            self.head = nn.Linear(config.width, config.vocab, bias=False, **place)
            self.criterion = CrossEntropy()
        self.tie()

    def tie(self):
        """Let the head share the embedding's matrix, if this stage has both."""
        if self.config.tied and self.first and self.last:
            self.head.weight = self.embedding.weight

    def _apply(self, fn, recurse=True):  # moving and casting may replace the parameters
        super()._apply(fn, recurse)
        self.tie()
        return self

    def plain_name(self, name: str) -> str:
        """The parameter's name in the whole model. It differs for the tied head of a last stage."""
        return "embedding.weight" if name == "head.weight" and self.config.tied else name

    def loss(self, batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the loss, summed over the batch's targets, in nats; and the number of targets.

        In training, a mixture of experts adds its losses, for each token: see `extra`.

        Args:
            batch: a `helpers.data.batch.Batch`: tokens, targets, numbers, step, documents.
        """
        positions = self.locate(batch.tokens, **batch.located())
        total, count = self.criterion(self(batch.tokens, positions), batch.targets)
        return total + self.extra(), count

    def extra(self) -> torch.Tensor | int:
        """Take what the experts' routers add to the loss of the last forward: a sum over tokens.

        The loss of a batch is the sum of its sequences' losses, whatever the micro-batches. A stage
        of a pipeline adds its own.
        """
        mixtures = [block.mlp for block in self.blocks.values() if block.routed]
        return sum(mixture.take_extra() for mixture in mixtures)

    def forward(
        self,
        x: torch.Tensor,
        positions: Positions | None = None,
        cache: Cache | None = None,
        counts: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Compute logits, or a stage's output.

        Args:
            x: tokens (B, T), or an earlier stage's output (B, T, D).
            positions: as `locate` makes them; None for the batch's own, or the cache's next ones.
            cache: of the tokens before x. It gets the tokens of x.
            counts: with a cache, how many of the T tokens are real in each sequence; the others
                pad on the right, and their outputs mean nothing. None: all.

        Raises:
            ValueError: a sequence is longer than the context.
            CacheFull: the cache has no room. It is as before.
        """
        if cache is not None:
            positions = self.locate(x, begin(cache, x.shape[1], counts, self.config.context))
        positions = positions or self.locate(x)
        if self.first:
            x = self.embed(x, positions)  # (B, T, D)
        for number, block in self.blocks.items():
            if self.config.recompute == "full" and self.training and cache is None:
                x = again(block, x, positions)
            else:
                x = block(x, positions, None if cache is None else cache.blocks[int(number)])
        if cache is not None:
            cache.end()
        if not self.last:
            return x  # (B, T, D)
        (logits,) = self.fan_out(self.norm(x), self.head)
        return logits  # (B, T, V)

    def locate(
        self,
        x: torch.Tensor,
        places: torch.Tensor | None = None,
        numbers: torch.Tensor | None = None,
        step: int = 0,
        documents: Sequence[Sequence[int]] | None = None,
    ) -> Positions:
        """Compute the positions of a batch's tokens.

        Args:
            x: the model's input: (B, T) or (B, T, D).
            places: the tokens' places in their sequence, (T,) or (B, T); None for 0 … T-1.
            numbers: (B,), the sequences' numbers in the global batch; None for 0 … B-1.
            step: the training step.
            documents: the lengths of each sequence's documents. Places begin anew in each of them.

        Raises:
            ValueError: a sequence without given places is longer than the context; or a mixer
                hands a state on from document to document.
        """
        config, (sequences, length) = self.config, x.shape[:2]
        # With places of their own, the tokens of a row may be of several sequences.
        if places is None and length > config.context:
            raise ValueError(
                f"a sequence has {length} tokens, but the context allows {config.context}"
            )
        if documents and {"mamba", "mamba2"} & {*config.mixers}:
            raise ValueError(
                "a mamba or mamba2 mixer hands its state on to the next document: train it on "
                "sequences of one document"
            )
        turned = length if places is None else places
        if places is None:
            places = torch.arange(length, device=x.device)
        key = None
        if config.dropout and self.training:
            if numbers is None:
                numbers = torch.arange(sequences, device=x.device)
            key = counter(self.seed, step, numbers[:, None], places)  # (B, T)
        if documents:
            starts = starts_of(documents, x.device).gather(1, places.expand(sequences, -1))
            turned = places = places - starts
        angles = self.rotary(turned) if config.positions == "rotary" else None
        return Positions(places=places, angles=angles, key=key, documents=documents)

    def embed(self, tokens: torch.Tensor, positions: Positions) -> torch.Tensor:
        x = self.embedding(tokens)
        if self.config.positions == "learned":
            x = x + self.positions(positions.places)
        return drop(x, self.config, positions, site=0)


class Block(nn.Module):
    """A mixer, in which tokens see each other, and an MLP. Each adds its output to its input.

    With mlp="none", a block has only the mixer.

    The mixer's attribute is named after its kind, so that a parameter's name shows the kind:
    `blocks.3.attention.out.weight`.

    With `experts`, the MLP may be a `Mixture`; `routed` says so.

    Args:
        number: the block's number in the whole model.
    """

    def __init__(self, config: GPTShape, number: int, **place):
        super().__init__()
        self.config, self.number, self.kind = config, number, config.mixer_of(number)
        self.routed = config.routed(number)
        self.add_module(f"{self.kind}_norm", make_norm(config, **place))
        self.add_module(self.kind, MIXERS[self.kind](config, **place))
        if config.mlp != "none":
            self.mlp_norm = make_norm(config, **place)
            self.mlp = (Mixture if self.routed else MLPS[config.mlp])(config, **place)

    def forward(self, x: torch.Tensor, positions: Positions, cache: BlockCache | None = None):
        norm, mixer = getattr(self, f"{self.kind}_norm"), getattr(self, self.kind)
        y = mixer(norm(x), positions, cache)  # (B, T, D)
        x = x + drop(y, self.config, positions, site=2 * self.number + 1)
        if self.config.mlp == "none":
            return x
        y = self.mlp(self.mlp_norm(x))
        return x + drop(y, self.config, positions, site=2 * self.number + 2)


MIXERS = {
    "attention": Attention,
    "latent": LatentAttention,
    "mamba": Mamba,
    "mamba2": Mamba2,
}


class CrossEntropy(nn.Module):
    """`loss_sum` as a module, so that it can be replaced."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor):
        return loss_sum(logits, targets)


def loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the cross entropy, summed over the targets, in nats; and the number of targets.

    To average over ranks or micro-batches, divide the total loss by the total number of targets.

    Args:
        logits: (B, T, V); reduced in float32 at least.
        targets: (B, T); -100 for a place without a target.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    return loss, (targets != -100).sum()


def starts_of(documents: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """The place at which each token's document begins, (B, T)."""
    rows = [
        [start for start, n in zip(accumulate(lengths, initial=0), lengths, strict=False)
         for _ in range(n)]
        for lengths in documents
    ]  # fmt: skip
    return torch.tensor(rows, device=device)


def kept_by(model: GPT) -> dict[int, Kept]:
    """Say what each block of the model, or of a stage, keeps of the tokens that it has read."""
    return {block.number: MIXERS[block.kind].kept(model.config) for block in model.blocks.values()}


def begin(cache: Cache, tokens: int, counts: Sequence[int] | None, context: int) -> torch.Tensor:
    """Make room for new tokens, and return their places: those of `Cache.begin`.

    Raises:
        ValueError: a place is beyond the context.
        CacheFull: the cache has no room. It is as before.
    """
    places = cache.begin(tokens, counts)
    last = int(places.max()) if places.numel() else 0
    if last >= context:
        raise ValueError(
            f"a sequence would have {last + 1} tokens with those in the cache, but the context "
            f"allows {context}"
        )
    return places


def make_norm(config: GPTShape, **place) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.norm_eps, **place)
    return nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.bias, **place)


def drop(x: torch.Tensor, config: GPTShape, positions: Positions, site: int) -> torch.Tensor:
    """Apply dropout to (B, T, D), if it is on. `site` is its number in the whole model."""
    if positions.key is None:
        return x
    return dropout(x, config.dropout, counter(positions.key, site))
