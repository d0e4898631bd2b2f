"""One rank's part of a model for decoding, and the cache that goes with it.

H  query heads        K  key/value heads        N  ranks
D  width              V  vocabulary             B  sequences

Rank r has H/N query heads and the key/value heads that they use, 1/N of the MLP's inner width and
1/N of the vocabulary's rows. Its cache has its own key/value heads only. With fewer key/value heads
than ranks, several ranks keep the same head: then all caches together are N/K times as large.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from helpers.comm.mesh import Mesh
from helpers.comm.transport import GroupTransport
from helpers.inference.ranks.choice import all_logits, best_token
from helpers.models.attention import Attention
from helpers.models.caches.cache import Cache, Kept
from helpers.models.gpt import GPTConfig
from helpers.parallel.tensor.transform import AXIS, tensor_parallel
from helpers.state.slicing import load

HEADS = ("best", "logits")


class SplitModel:
    """This rank's part of a model. Every rank makes one, with the same arguments.

    Args:
        config: of the whole model; all its mixers are "attention".
        weights: the whole model's `state_dict()`. Their dtype is the dtype of the computation.
        mesh: has the axis "tp".
        device: for this rank's tensors.
        transport: sends the messages; called with the process group of the axis.
        head: how the next token is chosen: "best" gathers each rank's best logit, "logits" gathers
            all logits.

    Attributes:
        model: a GPT whose layers are cut. Its logits are those of this rank's tokens.
        start: the token of the first of these logits.

    Raises:
        ValueError: the heads do not divide over the ranks, a mixer is not "attention", no such
            head; or the weights do not fit the configuration.
    """

    def __init__(
        self,
        config: GPTConfig,
        weights: Mapping[str, torch.Tensor],
        mesh: Mesh,
        *,
        device: torch.device | str = "cpu",
        transport: Callable[..., GroupTransport] = GroupTransport,
        head: str = "best",
    ):
        kinds = {config.mixer_of(layer) for layer in range(config.layers)}
        if kinds != {"attention"}:
            other = min(kinds - {"attention"})
            raise ValueError(
                f"the mixer {other!r} cannot be cut by heads here: decode this model on one rank"
            )
        if head not in HEADS:
            raise ValueError(f"head must be one of {', '.join(HEADS)}, not {head!r}")
        self.config, self.head = config, head
        self.transport = transport(mesh.group(AXIS))
        self.dtype = weights["embedding.weight"].dtype
        model, parts = tensor_parallel(
            config, 0, mesh, self.dtype, transport=lambda group: self.transport
        )
        self.model = model.to_empty(device=device).eval().requires_grad_(False)
        load(parts, dict(model.named_parameters()), weights)
        self.start = getattr(model.criterion, "start", 0)  # one rank's criterion is not cut
        self.device = torch.device(device)

    @property
    def kept(self) -> dict[int, Kept]:
        """What each block keeps on this rank, for any cache."""
        return kept_on_rank(self.config, self.transport.size)

    @torch.no_grad()
    def next_tokens(
        self, tokens: torch.Tensor, cache: Cache, counts: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Read tokens, and choose the token that follows each sequence: (B,), on every rank.

        Args:
            tokens: (B, T), the same on every rank.
            cache: of this rank. It gets the tokens.
            counts: how many of the T are real in each sequence; None: all. A sequence without new
                tokens gets an arbitrary next token.

        Raises:
            NotANumber: no token can be chosen for a sequence. Every rank raises it.
            ValueError, CacheFull: as the model raises. Every rank raises it.
        """
        logits = self.model(tokens, cache=cache, counts=counts)  # (B, T, V/N)
        if counts is None:
            last = logits[:, -1]
        else:
            ends = torch.tensor(counts, device=logits.device) - 1
            last = logits[torch.arange(len(logits), device=logits.device), ends.clamp(min=0)]
        if self.head == "best":
            return best_token(last, self.start, self.transport)
        return best_token(all_logits(last, self.config.vocab, self.transport), 0, ALONE)


def kept_on_rank(config: GPTConfig, ranks: int) -> dict[int, Kept]:
    """Say what each block keeps on one of N ranks: the rank's own key/value heads.

    With fewer key/value heads than ranks, a rank keeps one head, which other ranks keep too.
    """
    heads = max(config.key_heads // ranks, 1)
    whole = Attention.kept(config)
    own = replace(whole, per_token=tuple((heads, width) for _, width in whole.per_token))
    return dict.fromkeys(range(config.layers), own)


class Alone:
    """The transport of a rank that already has all that it needs."""

    rank, size = 0, 1


ALONE = Alone()
