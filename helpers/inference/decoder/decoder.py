"""Decode a batch greedily, with few operators for each token.

B  sequences        C  capacity, slots per sequence        K  key/value heads
T  tokens           S  slots in use, the same for all      d  width of a head

All sequences end at the same slot, and a shorter prompt starts later. So each step writes one slot,
the same for all sequences, which is a view. Slots before a sequence's start are masked.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from helpers.inference.decoder.attend import attend_one
from helpers.inference.decoder.compiled import CompiledStep
from helpers.inference.decoder.rows import Rows
from helpers.inference.decoder.slots import Slots
from helpers.inference.decoder.weights import Weights
from helpers.models.caches.cache import CacheFull
from helpers.models.gpt import GPT


class Decoder:
    """Decode B sequences with a copy of a model's weights.

    The logits are the model's own, up to rounding. Dropout does not apply.

    Args:
        model: with RMS norms, rotary positions, SwiGLU and attention; no biases.
        sequences: B.
        capacity: C. At most the model's context.
        compiled: whether a step is one function in C, for one thread of a CPU, instead of
            PyTorch's operators. It needs a C compiler and a second copy of the weights.

    Raises:
        ValueError: the decoder cannot run this model, or a size is out of its range.
        RuntimeError: `compiled`, but there is no C compiler.
    """

    def __init__(self, model: GPT, sequences: int, capacity: int, *, compiled: bool = False):
        self.weights = Weights.of(model)
        config = model.config
        if sequences < 1:
            raise ValueError(f"sequences must be at least 1, not {sequences}")
        if not 1 <= capacity <= config.context:
            raise ValueError(
                f"capacity must be from 1 to the context of {config.context}, not {capacity}"
            )
        self.config, self.sequences, self.capacity = config, sequences, capacity
        like = self.weights.embedding
        with torch.inference_mode():
            self._slots = Slots(config, sequences, capacity, like)
            self._rows = Rows(self.weights, sequences)
            self._attended = like.new_empty(self._rows.queries.shape)
            # 0 for a slot that is in use, -inf for the others; one row for each head.
            pairs = sequences * config.key_heads
            self._bias = like.new_full((pairs, 1, capacity), float("-inf"))
            self._compiled = CompiledStep(self.weights, sequences) if compiled else None
        self._used = 0  # S
        self._start: torch.Tensor | None = None  # (B,), each sequence's first slot; None: all 0

    @property
    def bytes(self) -> int:
        """The bytes of the weights' copies and of the cache."""
        copied = self._compiled.bytes if self._compiled else 0
        return self.weights.bytes + self._slots.bytes + copied

    @property
    def lengths(self) -> list[int]:
        """The tokens of each sequence so far."""
        if self._start is None:
            return [self._used] * self.sequences
        return [self._used - start for start in self._start.tolist()]

    @torch.inference_mode()
    def prefill(self, tokens: torch.Tensor, counts: Sequence[int] | None = None) -> torch.Tensor:
        """Start anew with B prompts, and compute the logits (B, V) after each prompt's last token.

        Args:
            tokens: (B, T), int64; prompts shorter than T are padded on the right, by any token.
            counts: each prompt's tokens, 1 to T; None: all have T.

        Raises:
            ValueError: not B prompts, or a prompt is empty.
            CacheFull: T is more than the capacity.
        """
        counts = self._check(tokens, counts)
        longest, device = max(counts), self._bias.device
        self._used, self._start = 0, None
        self._slots.clear(longest)
        self._bias.fill_(float("-inf"))
        tokens, places, seen = tokens[:, :longest], torch.arange(longest, device=device), None
        if min(counts) < longest:
            self._start = start = longest - torch.tensor(counts, device=device)
            # Before its start, a sequence repeats its first token. So a token whose vector is not
            # finite spoils no other sequence, even through a weight of 0.
            places = (places - start[:, None]).clamp(min=0)  # (B, T)
            tokens, seen = tokens.gather(1, places), self._visible(longest)
        logits = self._read(tokens, self.weights.angles[places], seen)
        self._used = longest
        self._bias[..., :longest] = 0
        if seen is not None:  # the last query of a sequence sees what all later ones see
            last = seen[:, 0, -1].repeat_interleave(self.config.key_heads, 0)  # (B K, T)
            self._bias[:, 0, :longest].masked_fill_(~last, float("-inf"))
        return logits

    def _check(self, tokens: torch.Tensor, counts: Sequence[int] | None) -> list[int]:
        if tokens.ndim != 2 or len(tokens) != self.sequences:
            raise ValueError(
                f"tokens have the shape {tuple(tokens.shape)}, but the decoder is of "
                f"{self.sequences} sequences; pass ({self.sequences}, T)"
            )
        length = tokens.shape[1]
        counts = [length] * self.sequences if counts is None else list(counts)
        if len(counts) != self.sequences:
            raise ValueError(f"{len(counts)} counts, but the decoder is of {self.sequences}")
        for number, count in enumerate(counts):
            if not 1 <= count <= length:
                raise ValueError(
                    f"prompt {number} has a count of {count}, but must have 1 to {length} tokens"
                )
        self._check_room(max(counts))
        return counts

    def _check_room(self, slots: int):
        if slots > self.capacity:
            raise CacheFull(
                f"a sequence would have {slots} tokens, but the decoder was made for "
                f"{self.capacity}; make it with a larger capacity"
            )

    def _visible(self, longest: int) -> torch.Tensor:
        """Make prefill's mask for sequences that start at different slots: (B, 1, T, T)."""
        slot = torch.arange(longest, device=self._start.device)
        seen = (slot <= slot[:, None]) & (slot >= self._start[:, None, None])
        # Before the start, a query sees itself: a softmax of nothing is not a number.
        return (seen | (slot == slot[:, None]))[:, None]

    def _read(self, tokens, angles, seen) -> torch.Tensor:
        """Run all blocks on (B, T) tokens and fill the cache. Returns the last logits (B, V)."""
        sequences, length = tokens.shape
        rows = Rows(self.weights, tokens.numel())
        rows.embed(tokens.flatten())
        angles = angles.expand(sequences, length, 1, -1).flatten(0, 1)  # (B T, 1, d/2)
        shared = self.config.heads > self.config.key_heads
        for block, cache in zip(self.weights.blocks, self._slots.rows, strict=True):
            rows.project(block, angles)
            new = rows.keys_values.unflatten(0, tokens.shape).permute(2, 0, 3, 1, 4)
            cache[..., :length, :] = new  # (2, B, K, T, d)
            q = rows.queries.flatten(1, 2).unflatten(0, tokens.shape).transpose(1, 2)
            y = scaled_dot_product_attention(
                q, *new, attn_mask=seen, is_causal=seen is None, scale=1.0, enable_gqa=shared
            )  # (B, H, T, d)
            rows.finish(block, y.transpose(1, 2).flatten(2).flatten(0, 1))
        return rows.logits(slice(length - 1, None, length))

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Read one more token of each sequence, (B,), and compute the next logits (B, V).

        Raises:
            CacheFull: a sequence has as many tokens as the capacity. The decoder is as before.
        """
        self._check_room(self._used + 1)
        if tokens.shape != (self.sequences,):
            raise ValueError(
                f"tokens have the shape {tuple(tokens.shape)}; pass one for each of the "
                f"{self.sequences} sequences"
            )
        slot = self._used
        if slot == self._slots.width:
            self._slots.widen()
        self._bias[..., slot] = 0
        if self._compiled:
            logits = self._compiled(tokens, self._slots, slot, self._start)
        else:
            logits = self._operators(tokens, slot)
        self._used = slot + 1
        return logits

    def _operators(self, tokens: torch.Tensor, slot: int) -> torch.Tensor:
        """Compute a step with PyTorch's operators."""
        rows, slots, angles = self._rows, self._slots, self.weights.angles
        angles = angles[slot] if self._start is None else angles[slot - self._start]
        bias, queries = self._bias[..., : slots.width], rows.queries
        new = rows.keys_values.transpose(0, 1)  # (2, B, K, d)
        mixed, attended = self._attended.flatten(1), self._attended.flatten(0, 1)
        rows.embed(tokens)
        each = zip(self.weights.blocks, slots.rows, slots.keys, slots.values, strict=True)
        for block, both, keys, values in each:
            rows.project(block, angles)
            both[..., slot, :].copy_(new)
            attend_one(queries.flatten(0, 1), keys, values, bias, attended)  # (B K, H/K, d)
            rows.finish(block, mixed)
        return rows.logits()

    @torch.inference_mode()
    def rewind(self, tokens: int):
        """Forget the last tokens of each sequence.

        Raises:
            ValueError: a sequence has fewer tokens, or `tokens` is negative.
        """
        if not 0 <= tokens <= min(self.lengths):
            raise ValueError(
                f"cannot forget {tokens} tokens: the shortest sequence has {min(self.lengths)}"
            )
        self._used -= tokens
        self._slots.forget(self._used)
        self._bias[..., self._used :] = float("-inf")

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        """Continue each of B prompts by the most likely tokens.

        Args:
            prompts: tokens, at least one each; their lengths may differ.
            new_tokens: of each prompt.

        Returns:
            The new tokens of each prompt.

        Raises:
            ValueError: not B prompts, a prompt is empty, or `new_tokens` is negative.
            CacheFull: a prompt and its new tokens need more slots than the capacity. The last new
                token is never read, so it needs no slot.
        """
        if new_tokens < 0:
            raise ValueError(f"new_tokens must be at least 0, not {new_tokens}")
        counts = [len(prompt) for prompt in prompts]
        longest = max(counts, default=0)
        self._check_room(longest + max(new_tokens - 1, 0))
        padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
        device = self._bias.device
        tokens = torch.tensor(padded, dtype=torch.int64, device=device)
        tokens = tokens.reshape(len(padded), longest)  # no prompts at all have no second dim
        logits, found = self.prefill(tokens, counts), []
        for number in range(new_tokens):
            if number:
                logits = self.step(found[-1])
            found.append(logits.argmax(1))
        return torch.stack(found, 1).tolist() if found else [[] for _ in prompts]
