"""Count a GPT's FLOPs per token, without building it.

The exact counts are of `helpers.models.gpt`. Each paper's own convention has the paper's name.
What a block's mixer adds is counted in a module of its own: see `parameter_counts.MIXERS`.
Letters as in gpt.py and attention.py: T, V, D, H, d.
"""

from collections import Counter

from helpers.models.config import GPTConfig
from helpers.models.flop_conventions import FORWARD, forward_flops
from helpers.models.parameter_counts import MIXERS, parameters

# With `parameters`: notebooks import both from here.
__all__ = ["CONVENTIONS", "PARTS", "flops_per_token", "parameters"]

CONVENTIONS = ("exact", *FORWARD)
PARTS = ("training", "forward", "backward", "recomputed")


def flops_per_token(
    config: GPTConfig,
    tokens: int | None = None,
    convention: str = "exact",
    *,
    part: str = "training",
    attention: bool | None = None,
    embedding: bool | None = None,
) -> int:
    """Count the FLOPs for one token of a sequence of T tokens. A multiply-add is 2 FLOPs.

    "exact": every matrix product of this model, as `helpers.measure.flops` counts them on a step.
        The forward needs 2 FLOPs for each parameter in a matrix, including the head, and 4 D T per
        layer for scores and values. The half that the causal mask hides counts too. The backward
        needs twice as much; but for scores and values 10 D T per layer with attention="sdpa", which
        recomputes the scores. Other mixers than "attention" have other products.
    "kaplan": 6 N, N without embeddings (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). With
        attention=True, the forward is 2 N + 2 layers D T, without the masked half. With
        embedding=True, it includes table 1's rows of the embedding, 4 D + 2 D V.
    "palm": 6 N + 12 layers H d T, N all parameters (Chowdhery et al. 2022, arXiv:2204.02311,
        appendix B). This convention defines model FLOPs utilization.
    "chinchilla": also counts the embedding as a product with one-hot vectors, 2 V D, and the
        softmax, 3 H T per layer (Hoffmann et al. 2022, arXiv:2203.15556, appendix F). Divide it by
        6 N, N all parameters, with embedding=False, to reproduce their table A4.

    Args:
        tokens: T; None for the whole context.
        part: "training" (forward and backward), "forward", "backward", or "recomputed": the FLOPs
            that config.recompute repeats in the backward. "training" gives model FLOPs; add
            "recomputed" for hardware FLOPs. Only "exact" supports "recomputed".
        attention: whether scores and values count; None: False for "kaplan", else True.
        embedding: whether embedding and head count; None: False for "kaplan", else True. For
            "palm": whether N includes their parameters.

    Raises:
        ValueError: no such convention or part, or `tokens` is not from 1 to the context.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be one of {', '.join(CONVENTIONS)}, not {convention!r}")
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, not {part!r}")
    if part == "recomputed" and convention != "exact":
        raise ValueError(
            f"{convention} counts model FLOPs only; part 'recomputed' needs convention 'exact'"
        )
    length = config.length(tokens)
    wide = convention != "kaplan"
    attention, embedding = (wide if on is None else on for on in (attention, embedding))
    if part == "recomputed":
        return _recomputed(config, length, attention)
    if convention == "exact":
        table = 2 * config.vocab * config.width * embedding
        forward = table + 2 * parameters(config).non_embedding
        backward = 2 * forward
        if attention:
            forward += _core(config, length, "forward")
            backward += _core(config, length, "backward")
    else:
        forward = forward_flops(config, length, convention, attention, embedding)
        backward = 2 * forward
    return {"forward": forward, "backward": backward, "training": forward + backward}[part]


def _core(config: GPTConfig, length: int, part: str) -> int:
    """The FLOPs of all mixers that are not of their matrices: scores and values."""
    kinds = Counter(config.mixers).items()
    return sum(n * MIXERS[kind].core_flops(config, length, part) for kind, n in kinds)


def _recomputed(config: GPTConfig, length: int, attention: bool) -> int:
    """The FLOPs that recomputing adds.

    A checkpoint recomputes only the tensors that the backward needs. For the last product, these
    are its inputs, so it is not repeated: the block's last matrix (unless dropout follows it), and
    the values of the explicit attention. The fused attention's backward needs its result.
    """
    if config.recompute == "none":
        return 0
    if config.recompute == "full":
        last = 0 if config.dropout else config.layers * config.width * config.inner
        if config.mlp == "none" and not config.dropout:  # the mixers' output matrices
            kinds = Counter(config.mixers).items()
            last = sum(n * MIXERS[kind].parameters(config).last for kind, n in kinds)
        core = _core(config, length, "forward") if attention else 0
        return 2 * (parameters(config).non_embedding - last) + core
    return _core(config, length, "recomputed") if attention else 0
