"""ZeRO stage 3 over nodes with slow links: its messages, and when quantised messages are faster.

P  parameters, with padding        M  their bytes        K  nodes        L  ranks of a node
B  numbers in a block of the quantiser        m  micro-batches in a step

Bytes between the nodes, of all ranks of a node together, with m = 1:

                              forward        backward      gradients
    stage 3                   M              M             M               times (K-1)/K
    int8 gathers (qwZ)        M/2 + 4P/B     M/2 + 4P/B    M
    second shard (hpZ)        M              0             M
    int4 sums (qgZ)           M              M             M/4 + 4P/B
    ZeRO++, all three         M/2 + 4P/B     0             M/4 + 4P/B

The numbers have 16 bits here. 4P/B are the scales, of 4 bytes; the paper drops them, and (K-1)/K.

Source: Wang et al. 2023, "ZeRO++", arXiv:2306.10209, section 3.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from helpers.plans.messages import Message, together, wire

Form = tuple[int, int]  # bits of a number, and B


def coded_bytes(numbers: int, form: Form | None, number_bytes: float) -> float:
    """Bytes of a row of numbers in a message: codes and scales, in whole words of 4 bytes."""
    if form is None:
        return numbers * number_bytes
    bits, block = form
    return 4 * math.ceil(numbers / block) + 4 * math.ceil(numbers * bits / 32)


def node_messages(
    rows: Iterable[int],
    nodes: int,
    local: int,
    *,
    weights: Form | None = None,
    secondary: bool = False,
    gradients: tuple[Form, Form] | None = None,
    number_bytes: float = 2,
    micro_batches: int = 1,
) -> list[Message]:
    """The messages of a rank in a step, along the axes "node" and "local".

    An all-to-all sends as much as a reduce-scatter, and is one here.

    Args:
        rows: numbers of each row, with padding: whole shards for K L ranks. Each is gathered for
            the forward and for the backward; a tied embedding, which stays gathered, is no such
            row.
        nodes, local: K and L.
        weights, secondary, gradients: as for `helpers.parallel.zero.plusplus.ZeroPlusPlus`.
        number_bytes: of a number that is not quantised.
        micro_batches: m.

    Raises:
        ValueError: a row is not divisible into K L shards.
    """
    inside, between = gradients or (None, None)
    crossing = 1 if secondary else 2 * micro_batches
    found = []
    for row in rows:
        shard, rest = divmod(row, nodes * local)
        if rest:
            raise ValueError(f"{row} numbers are not whole shards for {nodes * local} ranks")

        def message(axis, call, form, times, what, shard=shard):
            column = nodes * coded_bytes(shard, form, number_bytes)
            payload = column if axis == "node" else local * column
            ranks = nodes if axis == "node" else local
            return Message(
                axis=axis, call=call, payload=payload, times=times, ranks=ranks, what=what
            )

        found += [
            message("node", "all_gather", weights, crossing, "parameters"),
            message("local", "all_gather", weights, crossing, "parameters"),
            message("local", "all_gather", None, 2 * micro_batches - crossing, "second shard"),
            message("local", "reduce_scatter", inside, micro_batches, "gradients"),
            message("node", "reduce_scatter", between, micro_batches, "gradients"),
        ]
    return together(found)


def quantised_numbers(
    params: float,
    nodes: int,
    local: int,
    *,
    weights: bool = True,
    secondary: bool = True,
    gradients: bool = True,
    micro_batches: int = 1,
) -> dict[str, float]:
    """Numbers that a rank quantises and restores in a step: {"encode": …, "decode": …}.

    A gather quantises a shard, P/(K L), and restores P. A reduction quantises and restores P inside
    the node, and the node's P/L sums between the nodes.
    """
    crossing = (1 if secondary else 2 * micro_batches) * weights
    reduced = micro_batches * gradients * (params + params / local)
    return {
        "encode": crossing * params / (nodes * local) + reduced,
        "decode": crossing * params + reduced,
    }


def quantiser_seconds(numbers: Mapping[str, float], speed: Mapping[str, float]) -> float:
    """Seconds for these numbers, at so many numbers a second: {"encode": …, "decode": …}."""
    return sum(count / speed[what] for what, count in numbers.items())


def step_seconds(
    messages: Iterable[Message], bandwidth: Mapping[str, float], *, other: float = 0.0
) -> float:
    """Seconds of a step in which nothing overlaps: the messages of a rank, and `other` seconds.

    Args:
        bandwidth: bytes a second of each rank on each axis. The ranks of a node that share a card
            have a part of its bandwidth each. An axis that is not named takes no time.
    """
    return other + sum(
        nbytes / bandwidth.get(axis, math.inf) for axis, nbytes in wire(messages).items()
    )


def speed_up(
    exact: Sequence[Message],
    quantised: Sequence[Message],
    bandwidth: Mapping[str, float],
    *,
    quantiser: float,
    other: float = 0.0,
) -> float:
    """How many times faster the quantised messages make a step; below 1 if the step is slower.

    Args:
        exact, quantised: the messages of a rank in both ways.
        bandwidth, other: as for `step_seconds`. `other` is what both ways do, such as computation.
        quantiser: seconds of the quantiser in a step, as from `quantiser_seconds`.
    """
    slow = step_seconds(exact, bandwidth, other=other)
    return slow / step_seconds(quantised, bandwidth, other=other + quantiser)


def break_even(
    exact: Sequence[Message],
    quantised: Sequence[Message],
    *,
    quantiser: float,
    inside: float = math.inf,
) -> float:
    """The bandwidth between nodes at which both ways take as long, in bytes a second of a rank.

    On slower links the quantised messages are faster. It is V / (q + i): V bytes fewer between the
    nodes, q seconds of the quantiser, i seconds more inside the nodes. Infinite if q + i is not
    positive: then they are faster on any link.

    Args:
        inside: bytes a second of a rank inside its node.
    """
    fewer = wire(exact).get("node", 0.0) - wire(quantised).get("node", 0.0)
    more = [step_seconds(one, {"local": inside}) for one in (quantised, exact)]
    longer = quantiser + more[0] - more[1]
    return fewer / longer if longer > 0 else math.inf
