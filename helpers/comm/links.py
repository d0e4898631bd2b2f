"""Links of two classes: inside a node, and between nodes. Rank r is on node r // L.

L  ranks of a node
"""

from collections.abc import Callable, Iterable

import torch.distributed as dist

from helpers.comm.ledger import Entry
from helpers.comm.paced import Link, PacedTransport
from helpers.comm.transport import GroupTransport


def link_bytes(entries: Iterable[Entry], rank: int, local: int) -> dict[str, float]:
    """Add up the bytes that a rank sends inside its node and to other nodes.

    Args:
        entries: of the rank's ledger. Calls without known receivers are left out.
        rank: of the world.
        local: L.

    Returns:
        {"inside": bytes, "between": bytes}
    """
    found = {"inside": 0.0, "between": 0.0}
    for entry in entries:
        for other, size in entry.to.items():
            found["inside" if other // local == rank // local else "between"] += size
    return found


def paced_between(local: int, **pace) -> Callable[..., GroupTransport]:
    """Return what makes the transport of a group: paced if the group leaves a node.

    All of them share this rank's one link to other nodes.

    Args:
        local: L.
        pace: alpha and bytes_per_second, as for PacedTransport.
    """
    link = Link()

    def make(group: dist.ProcessGroup) -> GroupTransport:
        nodes = {rank // local for rank in dist.get_process_group_ranks(group)}
        if len(nodes) == 1:
            return GroupTransport(group)
        return PacedTransport(group, link=link, **pace)

    return make
