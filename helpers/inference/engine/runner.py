"""The model runner: one forward for all requests of a step, and a token for each that is ready.

N  tokens of all requests in the step        B  requests that get a token        V  different tokens
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from helpers.inference.decoder.fused import Fused
from helpers.inference.engine.request import Request
from helpers.inference.reading import device_of, evaluating
from helpers.inference.sampling import NotANumber, are_numbers, choose
from helpers.models.caches.packed import Packed
from helpers.models.caches.paged import Paged, PagedSequence
from helpers.models.caches.paged_batch import PagedBatch
from helpers.models.gpt import GPT, kept_by


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The tokens of one request in a step.

    Attributes:
        number: the request's number.
        tokens: to compute.
        request: the request if the last of these tokens gives its next token, else None.
        place: where the next token goes in the sequence.
    """

    number: int
    tokens: Sequence[int]
    request: Request | None = None
    place: int = 0


class Runner:
    """A model and its paged cache, with a sequence for each request that runs.

    A model whose blocks keep rows for each token gets all tokens of a step in one row: N tokens
    pass through the linear layers at once, and attention alone sees the requests (Yu et al. 2022,
    section 3: selective batching). A model with states of fixed size gets a padded batch.

    Args:
        blocks: of the cache.
        block_size: tokens in a block.
        share_prefixes: whether a sequence starts with the known blocks of an earlier prompt.
        fused: compute with a copy of the weights that is arranged for decoding.

    Raises:
        ValueError: the model's prefixes cannot be shared, or its weights cannot be fused.
    """

    def __init__(
        self,
        model: GPT,
        blocks: int,
        block_size: int = 16,
        *,
        share_prefixes: bool = False,
        fused: bool = False,
    ):
        self.model, self.device, self.blocks = model, device_of(model), blocks
        self.forward = Fused(model) if fused else model
        self.paged = Paged(
            kept_by(model),
            blocks,
            block_size,
            dtype=next(model.parameters()).dtype,
            device=self.device,
            share_prefixes=share_prefixes,
        )
        self.packs = not self.paged.states
        self.block_size = block_size if self.paged.blocks_of(1) else 0
        self.share_prefixes = share_prefixes
        self.sequences: dict[int, PagedSequence] = {}

    @property
    def free(self) -> int:
        """The free blocks."""
        return self.paged.free_blocks

    def held(self, number: int) -> int:
        """Count the blocks that this request alone holds: those that `release` frees."""
        references = self.paged.allocator.references
        return sum(references(block) == 1 for block in self.sequences[number].table)

    def start(self, number: int, tokens: Sequence[int]) -> int:
        """Make a request's sequence; return how many of its tokens the cache knows already."""
        self.sequences[number] = self.paged.sequence(tokens)
        return self.sequences[number].length

    def release(self, number: int):
        """Free a request's blocks."""
        self.sequences.pop(number).free()

    def release_all(self):
        for number in list(self.sequences):
            self.release(number)

    @torch.no_grad()
    def step(self, pieces: Sequence[Piece], padding: int = 0) -> dict[int, int | str]:
        """Compute the pieces; return the next token, or an error, of each with a request.

        Args:
            padding: rows that are computed for nothing.
        """
        # Single tokens first, shortest sequence first: their attention is computed together.
        pieces = sorted(pieces, key=lambda p: (len(p.tokens) > 1, self.sequences[p.number].length))
        with evaluating(self.model):
            logits = self.packed(pieces, padding) if self.packs else self.padded(pieces, padding)
        if self.share_prefixes:
            self.register(pieces)
        ready = [row for row, piece in enumerate(pieces) if piece.request is not None]
        return self.sample([pieces[row] for row in ready], logits[ready])

    def packed(self, pieces: Sequence[Piece], padding: int) -> torch.Tensor:
        """Run the model on all tokens in one row. Return the logits after each piece, (B, V)."""
        counts = [len(piece.tokens) for piece in pieces]
        cache = Packed(self.paged, [self.sequences[p.number] for p in pieces], counts)
        row = [token for piece in pieces for token in piece.tokens] + [0] * padding  # (N,)
        logits = self.forward(torch.tensor([row], device=self.device), cache=cache)  # (1, N, V)
        last = torch.tensor(counts, device=self.device).cumsum(0) - 1
        return logits[0, last]

    def padded(self, pieces: Sequence[Piece], padding: int) -> torch.Tensor:
        """Run the model on a batch of one row for each piece, filled up on the right."""
        none = [self.paged.sequence() for _ in range(padding)]  # sequences without a token
        try:
            counts = [len(piece.tokens) for piece in pieces] + [0] * padding
            longest = max(counts)
            rows = [[*piece.tokens, *[0] * (longest - len(piece.tokens))] for piece in pieces]
            rows += [[0] * longest] * padding
            cache = PagedBatch(
                self.paged, [*(self.sequences[piece.number] for piece in pieces), *none]
            )
            x = torch.tensor(rows, device=self.device)  # (B, T)
            logits = self.forward(x, cache=cache, counts=counts)  # (B, T, V)
        finally:
            for sequence in none:
                sequence.free()
        return torch.stack([logits[row, len(piece.tokens) - 1] for row, piece in enumerate(pieces)])

    def register(self, pieces: Sequence[Piece]):
        """Let later requests start with the blocks of the prompts that are now read."""
        for piece in pieces:
            if piece.request is not None and piece.place == len(piece.request.prompt):
                self.paged.register(self.sequences[piece.number], piece.request.prompt)

    def sample(self, pieces: Sequence[Piece], logits: torch.Tensor) -> dict[int, int | str]:
        """Choose the next token of each piece. NaN in one request's logits ends that one alone."""
        if not pieces:
            return {}
        fine = are_numbers(logits).tolist()
        results: dict[int, int | str] = {
            piece.number: NotANumber.text for piece, ok in zip(pieces, fine, strict=True) if not ok
        }
        rows = [row for row, ok in enumerate(fine) if ok]
        requests = [pieces[row].request for row in rows]
        tokens = choose(
            logits[rows],
            [request.sampling for request in requests],
            [request.seed for request in requests],
            [pieces[row].place for row in rows],
        )
        chosen = zip(rows, tokens.tolist(), strict=True)
        return results | {pieces[row].number: token for row, token in chosen}
