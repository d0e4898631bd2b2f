"""What all earlier ranks hold, combined in their order: MPI's `exscan`, from messages.

With an associative operator, log2 N rounds are enough. In the round of distance s, every rank sends
what it has combined so far to the rank s places later:

    distance 1    rank 3 receives           2     and has      2 3
    distance 2    rank 3 receives       0 1       and has  0 1 2 3

Source: Hillis and Steele 1986, "Data Parallel Algorithms", Communications of the ACM 29(12).
"""

from collections.abc import Callable, Sequence

import torch

from helpers.comm.messages import Peers, in_a_row

Element = tuple[torch.Tensor, ...]


def exclusive_scan(
    own: Sequence[torch.Tensor],
    combine: Callable[[Element, Element], Element],
    peers: Peers,
    reverse: bool = False,
) -> Element | None:
    """Combine the elements of all earlier ranks, in the order of the ranks.

    A rank sends one message for each distance 1, 2, 4, … at which there is a later rank.

    Args:
        own: this rank's element: tensors of one dtype. All ranks have the same shapes.
        combine: `combine(earlier, later)`, associative. It need not be commutative.
        peers: the group, as this rank sees it.
        reverse: the last rank is the first; "earlier" means a higher rank.

    Returns:
        The combined element; None on the first rank.
    """
    size = peers.size
    place = size - 1 - peers.rank if reverse else peers.rank
    so_far, before = tuple(own), None
    for distance in (2**k for k in range((size - 1).bit_length())):
        later, earlier = place + distance, place - distance
        send = packed(so_far) if later < size else None
        received = torch.empty_like(packed(so_far)) if earlier >= 0 else None
        if reverse:
            later, earlier = size - 1 - later, size - 1 - earlier
        peers.exchange(send, later, received, earlier)
        if received is not None:
            came = unpacked(received, own)
            before = came if before is None else combine(came, before)
            so_far = combine(came, so_far)
    return before


def packed(element: Element) -> torch.Tensor:
    """All numbers of an element in one row, for one message."""
    return torch.cat([in_a_row(tensor) for tensor in element])


def unpacked(row: torch.Tensor, like: Sequence[torch.Tensor]) -> Element:
    """The tensors of an element, from one row."""
    parts = row.split([tensor.numel() for tensor in like])
    return tuple(part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True))
