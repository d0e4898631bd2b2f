"""Where experts go, if some are hotter than others: copies of the hot ones, packed by load.

All experts of a layer wait for the busiest GPU. A copy of a hot expert halves its load. Then the
copies are packed, so that all GPUs have as many experts, and about the same load. Experts of a
group stay on a node, if the groups divide over the nodes: a token that chooses few groups then
crosses to few nodes.

Source: DeepSeek-V3, arXiv:2412.19437, section 3.4.1, "redundant experts"; the algorithm is that of
https://github.com/deepseek-ai/EPLB.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The experts of a layer on the GPUs.

    Attributes:
        experts: the experts that each GPU holds; an expert may be on several.
    """

    experts: tuple[tuple[int, ...], ...]

    @property
    def copies(self) -> Counter:
        """How often each expert is held."""
        return Counter(expert for own in self.experts for expert in own)

    def loads(self, tokens: Sequence[float]) -> list[float]:
        """The tokens of each GPU, if the copies of an expert share its tokens evenly.

        Args:
            tokens: of each expert.
        """
        copies = self.copies
        return [sum(tokens[expert] / copies[expert] for expert in own) for own in self.experts]

    def imbalance(self, tokens: Sequence[float]) -> float:
        """The largest load over the mean: the time of a layer, if 1 is that of even loads."""
        loads = self.loads(tokens)
        return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0


def place(
    tokens: Sequence[float], *, slots: int, gpus: int, nodes: int = 1, groups: int = 1
) -> Placement:
    """Place the experts of a layer.

    Args:
        tokens: of each expert, as measured before.
        slots: experts that all GPUs together hold, copies included.
        gpus: the number of GPUs; neighbours are on one node.
        nodes: the number of nodes.
        groups: of neighbouring experts. If they do not divide over the nodes, both are ignored.

    Raises:
        ValueError: numbers do not divide, or there are more experts than slots.
    """
    if groups % nodes:
        groups = nodes = 1
    experts = len(tokens)
    for what, whole, parts in (
        ("experts over groups", experts, groups),
        ("GPUs over nodes", gpus, nodes),
        ("slots over GPUs", slots, gpus),
    ):
        if whole % parts:
            raise ValueError(f"{whole} {what.replace(' over', f' do not divide over {parts}')}")
    if slots < experts:
        raise ValueError(f"{experts} experts do not fit into {slots} slots")
    size, found = experts // groups, []
    of_group = [sum(tokens[g * size : (g + 1) * size]) for g in range(groups)]
    for own in pack(of_group, nodes):
        here = [expert for g in own for expert in range(g * size, (g + 1) * size)]
        held = replicate([tokens[expert] for expert in here], slots // nodes)
        copies = Counter(held)
        loads = [tokens[here[one]] / copies[one] for one in held]
        for gpu in pack(loads, gpus // nodes):
            found.append(tuple(here[held[slot]] for slot in gpu))
    return Placement(experts=tuple(found))


def replicate(tokens: Sequence[float], slots: int) -> list[int]:
    """Give each slot an expert: first all experts, then copies.

    Each copy is of the expert with the most tokens for each of its copies so far.
    """
    found = list(range(len(tokens)))
    copies = [1] * len(tokens)
    while len(found) < slots:
        hottest = max(found[: len(tokens)], key=lambda one: tokens[one] / copies[one])
        copies[hottest] += 1
        found.append(hottest)
    return found


def pack(loads: Sequence[float], packs: int) -> list[list[int]]:
    """Divide items into packs of as many items each: the heaviest first, to the lightest pack.

    Returns:
        The numbers of each pack's items, in the order in which they came.
    """
    most = len(loads) // packs
    if most == 1:
        return [[item] for item in range(packs)]
    found, weights = [[] for _ in range(packs)], [0.0] * packs
    for item in sorted(range(len(loads)), key=lambda item: -loads[item]):
        pack = min((p for p in range(packs) if len(found[p]) < most), key=weights.__getitem__)
        found[pack].append(item)
        weights[pack] += loads[item]
    return found
