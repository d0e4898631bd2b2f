"""Greedy decoding on the ranks of a Cluster, with its seconds and its messages.

    with Cluster(workers=2) as cluster:
        cluster.run(load_split, config=model.config, weights=model.state_dict())
        runs = cluster.run(decode, prompts=[[1, 2, 3], [4]], new_tokens=16)
    runs[0].tokens

B  sequences
"""

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from helpers.comm.ledger import Ledger, ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import GroupTransport
from helpers.inference.ranks.split import SplitModel
from helpers.models.caches.preallocated import Preallocated
from helpers.models.gpt import GPTConfig


@dataclass
class Decoded:
    """One rank's result of `decode`.

    Attributes:
        tokens: each prompt's new tokens; the same on every rank.
        seconds: of each forward with its choice. The first one reads the prompts.
        traffic: a ledger for each forward, if they were counted.
        cache_bytes: of this rank's cache.
    """

    tokens: list[list[int]]
    seconds: list[float] = field(default_factory=list)
    traffic: list[Ledger] = field(default_factory=list)
    cache_bytes: int = 0

    @property
    def seconds_per_token(self) -> float:
        """The median time of a decoding step, without the prompt's. NaN if there was none."""
        return statistics.median(self.seconds[1:]) if len(self.seconds) > 1 else float("nan")


def load_split(
    worker,
    *,
    config: GPTConfig,
    weights: Mapping[str, torch.Tensor],
    transport: Callable[..., GroupTransport] = GroupTransport,
    head: str = "best",
) -> int:
    """Put each rank's part of the model into its `worker.state`. All ranks share one axis, "tp".

    Args:
        config, weights, transport, head: as for SplitModel.

    Returns:
        The bytes of this rank's parameters.
    """
    mesh = getattr(worker.state, "decode_mesh", None)
    if mesh is None:
        mesh = worker.state.decode_mesh = make_mesh(Layout(tp=worker.world_size), worker.device)
    options = {"device": worker.device, "transport": transport, "head": head}
    worker.state.split = SplitModel(config, weights, mesh, **options)
    return sum(p.nbytes for p in worker.state.split.model.parameters())


def decode(
    worker,
    *,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    stop: Collection[int] = (),
    count: bool = False,
) -> Decoded:
    """Continue the prompts with the model that `load_split` put on this rank.

    Args:
        prompts: B lists of tokens, of any lengths above 0.
        new_tokens: how many tokens each prompt gets.
        stop: a sequence ends after one of these tokens. The ranks go on until all have ended.
        count: count every message. This takes time: do not use `seconds` then.

    Raises:
        RuntimeError: there is no model on this rank.
        ValueError: as `greedy` raises.
    """
    split = getattr(worker.state, "split", None)
    if split is None:
        raise RuntimeError("these ranks have no model: call `load_split` on the cluster first")
    return greedy(split, prompts, new_tokens, stop=stop, count=count)


def greedy(
    split: SplitModel,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    stop: Collection[int] = (),
    count: bool = False,
) -> Decoded:
    """Continue the prompts on this rank and, at the same time, on the other ranks of the axis.

    Raises:
        ValueError: a prompt is empty or contains an unknown token, or a sequence would be longer
            than the context. Every rank raises it before the first message.
    """
    check(split.config, prompts, new_tokens)
    lengths = [len(prompt) for prompt in prompts]
    capacity = max(lengths, default=0) + new_tokens
    place = {"dtype": split.dtype, "device": split.device}
    cache = Preallocated(split.kept, len(prompts), capacity, **place)
    found = Decoded([[] for _ in prompts], cache_bytes=cache.bytes)
    tokens = torch.zeros(len(prompts), max(lengths, default=0), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    tokens = tokens.to(split.device)
    counts = lengths if len(set(lengths)) > 1 else None
    alive = list(range(len(prompts)))
    for _ in range(new_tokens if prompts else 0):
        began = time.perf_counter()
        with ledger() if count else nullcontext() as log:
            chosen = split.next_tokens(tokens, cache, counts).tolist()
        found.seconds.append(time.perf_counter() - began)
        found.traffic += [log] if count else []
        for row in alive:
            found.tokens[row].append(chosen[row])
        alive = [row for row in alive if chosen[row] not in stop]
        if not alive:
            break
        tokens = torch.tensor(chosen, device=split.device)[:, None]
        counts = None
    return found


def check(config: GPTConfig, prompts: Sequence[Sequence[int]], new_tokens: int):
    """Refuse what would fail in the middle of a step, while other ranks wait for a message."""
    if new_tokens < 0:
        raise ValueError(f"new_tokens must be at least 0, not {new_tokens}")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {number} is empty: give it at least one token")
        if min(prompt) < 0 or max(prompt) >= config.vocab:
            raise ValueError(
                f"prompt {number} has a token outside the vocabulary of {config.vocab}"
            )
        if len(prompt) + new_tokens > config.context + 1:  # the last new token is not read
            raise ValueError(
                f"prompt {number} has {len(prompt)} tokens, and {new_tokens} more do not fit into "
                f"the context of {config.context}: ask for fewer"
            )
