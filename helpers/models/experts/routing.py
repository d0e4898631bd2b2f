"""Routing: which experts a token goes to, its gates, and the losses that balance the experts.

All results are of each token or of each sequence. So they do not depend on micro-batches, nor on
how the sequences are divided over ranks.

B  sequences        E  experts                   G  groups of experts, each on a node
T  tokens           k  experts of a token        M  groups that a token may use
"""

import math
from collections.abc import Callable

import torch


def scores_of(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """Compute the scores of tokens and experts from logits (…, E): "softmax" or "sigmoid"."""
    return logits.softmax(-1) if kind == "softmax" else logits.sigmoid()


@torch.no_grad()
def choose(scores: torch.Tensor, k: int, groups: int = 1, limit: int | None = None) -> torch.Tensor:
    """Choose the k experts with the largest scores: (…, k) int64, the largest first.

    With a limit, first the M groups whose k/M largest scores have the largest sums are chosen, and
    then the experts in them (DeepSeek-V3, arXiv:2412.19437, section 2.1.2, "Node-limited routing").

    Args:
        scores: (…, E), with the bias of the choice.
        groups, limit: G and M; None: all groups.
    """
    if limit is not None and limit < groups:
        by_group = scores.unflatten(-1, (groups, -1))  # (…, G, E/G)
        most = min(math.ceil(k / limit), by_group.shape[-1])
        sums = by_group.topk(most, dim=-1).values.sum(-1)  # (…, G)
        allowed = torch.zeros_like(sums, dtype=torch.bool)
        allowed.scatter_(-1, sums.topk(limit, dim=-1).indices, True)
        scores = by_group.masked_fill(~allowed[..., None], -math.inf).flatten(-2)
    return scores.topk(k, dim=-1).indices


def gates_of(
    scores: torch.Tensor, chosen: torch.Tensor, normalized: bool = True, scale: float = 1.0
) -> torch.Tensor:
    """Compute the gates (…, k) of the chosen experts: their scores, times `scale`.

    Args:
        scores: (…, E), without a bias: it is for the choice alone.
        normalized: divide by the sum over the chosen.
    """
    gates = scores.gather(-1, chosen)
    if normalized:
        gates = gates / (gates.sum(-1, keepdim=True) + 1e-20)  # sigmoids may all be 0
    return scale * gates


@torch.no_grad()
def counts_of(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """Count the tokens of each sequence that chose each expert: (B, T, k) to (B, E) int64."""
    counts = torch.zeros(len(chosen), experts, dtype=torch.int64, device=chosen.device)
    places = chosen.flatten(1)
    return counts.scatter_add_(1, places, torch.ones_like(places))


@torch.no_grad()
def within_capacity(chosen: torch.Tensor, experts: int, capacity: float) -> torch.Tensor:
    """Say which choices an expert keeps: (B, T, k) bool.

    In each sequence, an expert takes the first ⌈capacity k T / E⌉ tokens that chose it, and drops
    the others. Tokens go in the sequence's order, with all of their choices: so no token changes
    what happened before. GShard (arXiv:2006.16668, algorithm 1) takes all first choices first.

    Args:
        chosen: (B, T, k).
        experts: E.
    """
    sequences, tokens, k = chosen.shape
    most = math.ceil(capacity * k * tokens / experts)
    ones = torch.nn.functional.one_hot(chosen.flatten(1), experts)  # (B, T k, E)
    before = (ones.cumsum(1) - ones).gather(-1, chosen.flatten(1)[..., None])
    return (before < most).view(sequences, tokens, k)


def balance_loss(
    scores: torch.Tensor,
    chosen: torch.Tensor,
    total: Callable[[torch.Tensor], torch.Tensor] = lambda counts: counts,
) -> torch.Tensor:
    """Compute Σ T Σ_i f_i P_i over sequences: T if every expert gets the same.

    f_i is E/(k T) times the number of tokens that chose expert i; P_i is the mean over tokens of
    its share of the scores (DeepSeek-V3, equations 17 to 20). The loss of one sequence is weighted
    by its tokens T, so that it enters a sum over tokens as the cross entropy does. A loss of a
    whole batch would not be the sum of its micro-batches' losses. Only P has a gradient.

    Args:
        scores: (B, T, E).
        chosen: (B, T, k).
        total: counts (B, E) of the tokens here -> those of whole sequences.
    """
    counts = total(counts_of(chosen, scores.shape[-1])).to(scores)  # (B, E)
    shares = (scores / (scores.sum(-1, keepdim=True) + 1e-20)).sum(1)  # T P, (B, E)
    every = counts.sum(-1).clamp(min=1)  # k T
    return scores.shape[-1] * ((counts * shares).sum(-1) / every).sum()


def z_loss(logits: torch.Tensor) -> torch.Tensor:
    """Compute the sum over tokens of (log Σ exp logit)²: it keeps logits small.

    Source: Zoph et al. 2022 (ST-MoE), arXiv:2202.08906, equation 5.
    """
    return logits.logsumexp(-1).square().sum()
