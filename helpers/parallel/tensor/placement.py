"""Which rows or columns of each matrix a rank has: parts of a plain GPT, cut over an axis.

H  query heads        K  key/value heads        d  width of a head        N  ranks on the axis
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from helpers.models.config import GPTConfig
from helpers.parallel.tensor import mamba2
from helpers.state.part import Part, Range
from helpers.state.placing import HasSeat, cut, pending, whole

ROWS, COLUMNS = 0, 1  # dims of a weight (out, in)


def placed(seat: HasSeat, config: GPTConfig, shapes: Mapping[str, tuple], axis: str):
    """The parts of a plain GPT's parameters, cut over `axis`.

    Args:
        shapes: of the plain parameters, by this rank's own names.

    Returns:
        {name: Part}. Parameters that no rule names are whole on every rank.

    Raises:
        ValueError: the heads do not divide over the ranks, or a mixer cannot be cut.
    """
    check_mixers(config)
    ranks = seat.layout.size(axis)
    if "attention" in config.mixers:
        check_heads(config, ranks)
    if "mamba2" in config.mixers:
        mamba2.check_heads(config, ranks)
    rules = rules_of(config, seat, axis)
    return {name: place(seat, name, shape, rules) for name, shape in shapes.items()}


def place(seat: HasSeat, name: str, shape: tuple, rules: Mapping[str, Callable]) -> Part:
    part = whole(seat, name, shape)
    for ending, rule in rules.items():
        if name.endswith(ending):
            return rule(part)
    return part


def rules_of(config: GPTConfig, seat: HasSeat, axis: str) -> dict[str, Callable[[Part], Part]]:
    """How to cut a parameter, by the end of its name; the first that fits counts."""
    rows = partial(cut_dim, seat, axis, ROWS, None)
    columns = partial(cut_dim, seat, axis, COLUMNS, None)
    queries = partial(cut_dim, seat, axis, ROWS, query_rows(config, seat.layout.size(axis)))
    outs = partial(cut_dim, seat, axis, COLUMNS, query_rows(config, seat.layout.size(axis)))
    keys = partial(cut_keys, seat, axis, config)
    rules = {"attention.query": queries, "attention.key": keys, "attention.value": keys}
    rules |= {f"{mlp}.{name}": rows for mlp in ("mlp", "mlp.shared") for name in ("gate", "up")}
    column_parallel = {f"{module}.{kind}": rule for module, rule in rules.items() for kind in KINDS}
    row_parallel = {"attention.out.weight": outs, "mlp.down.weight": columns}  # biases stay whole
    row_parallel["mlp.shared.down.weight"] = columns
    inner = {"gate": 1, "up": 1, "down": 2}  # the dim of an expert's inner width
    experts = {
        f"experts.{name}": partial(cut_dim, seat, axis, dim, None) for name, dim in inner.items()
    }
    experts["router.weight"] = lambda part: pending(seat, part, axis)
    vocabulary = {"embedding.weight": rows, "head.weight": rows}
    return (
        column_parallel | row_parallel | experts | vocabulary | mamba2.rules_of(config, seat, axis)
    )


KINDS = ("weight", "bias")
MIXERS = ("attention", "mamba2")


def cut_dim(seat: HasSeat, axis: str, dim: int, where, part: Part) -> Part:
    return cut(seat, part, dim, axis, where)


def cut_keys(seat: HasSeat, axis: str, config: GPTConfig, part: Part) -> Part:
    """Cut by key heads. Ranks that share a key head sum its gradient: each has other queries."""
    where = key_rows(config, seat.layout.size(axis))
    return pending(seat, cut(seat, part, ROWS, axis, where), axis)


def query_rows(config: GPTConfig, ranks: int) -> list[list[Range]]:
    """Rank r has the query heads r H/N … (r+1) H/N."""
    size = config.heads // ranks * config.head_width
    return [[(rank * size, (rank + 1) * size)] for rank in range(ranks)]


def key_rows(config: GPTConfig, ranks: int) -> list[list[Range]]:
    """The key heads that a rank's query heads use: K/N of them, or one that several ranks share."""
    held = max(config.key_heads // ranks, 1)
    firsts = [rank * config.key_heads // ranks for rank in range(ranks)]
    d = config.head_width
    return [[(first * d, (first + held) * d)] for first in firsts]


def check_mixers(config: GPTConfig, known: Sequence[str] = MIXERS):
    """Check that the rules know the mixer of each block."""
    for layer, kind in enumerate(config.mixers):
        if kind not in known:
            raise ValueError(
                f"block {layer} has mixer {kind!r}, which is not cut over ranks; tensor "
                f"parallelism cuts {', '.join(known)}. Use data parallelism, ZeRO or a pipeline"
            )


def check_heads(config: GPTConfig, ranks: int):
    if config.heads % ranks:
        raise ValueError(
            f"{config.heads} query heads do not divide over {ranks} ranks: attention is cut by "
            "heads, so choose a number of ranks that divides the heads"
        )
    if config.key_heads % ranks and ranks % config.key_heads:
        raise ValueError(
            f"{config.key_heads} key heads on {ranks} ranks: one number must divide the other, so "
            "that a rank has whole key heads, or shares one"
        )
