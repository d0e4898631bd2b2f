"""Convert the parts of one layout to any other. A rank receives only numbers that it lacks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from helpers.comm.collectives import pairwise_all_to_all
from helpers.comm.messages import Peers, in_a_row
from helpers.state.all_parts import AllParts
from helpers.state.facts import carrier, exchange
from helpers.state.pieces import Box, Piece, common, inside, slices, volume

TOGETHER = 64 * 2**20  # bytes of plain tensors per round of messages


@dataclass(frozen=True)
class Move:
    """A box that the sender holds and the receiver needs. Both may be the same rank."""

    sender: int
    source: tuple[str, Piece]  # key and piece at the sender
    receiver: int
    target: tuple[str, Piece]  # key and piece at the receiver
    box: Box

    def sent(self, local: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """View the numbers in the sender's tensors."""
        key, piece = self.source
        return piece.of(local[key])[slices(inside(self.box, piece.box))]

    def received(self, local: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """View the numbers' place in the receiver's tensors."""
        key, piece = self.target
        return piece.of(local[key])[slices(inside(self.box, piece.box))]


def moves(source: AllParts, target: AllParts, name: str, rank: int) -> Iterator[Move]:
    """Yield what this rank sends, receives and copies of one plain tensor.

    The order is the same at the sender and the receiver. A rank that has the numbers already copies
    its own; otherwise the holders take turns as senders.
    """
    for receiver, keys in enumerate(target.keys):
        for key in keys.get(name, ()):
            wanted = target.pieces(receiver, key)
            for region in source.regions[name]:
                senders = list(region.keys)
                sender = receiver if receiver in senders else senders[receiver % len(senders)]
                if rank not in (sender, receiver):
                    continue
                for piece in source.pieces(sender, region.keys[sender]):
                    for want in wanted:
                        if (box := common(piece.box, want.box)) is not None:
                            own = (region.keys[sender], piece)
                            yield Move(sender, own, receiver, (key, want), box)


@torch.no_grad()
def reshard(
    source: AllParts,
    local: Mapping[str, torch.Tensor | None],
    target: AllParts,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """Convert this rank's tensors from one layout to another. Every rank of the world calls it.

    Numbers that a rank already holds are copied, not sent. A layout may use fewer ranks than the
    world: the other ranks have no parts, {}.

    Args:
        source, target: the two layouts. They have the same plain names and shapes, and as many
            ranks as the group.
        local: this rank's tensors by the keys of its source parts, of any dtype. A tensor that is
            None on all of its holders (a gradient of a frozen parameter) is left out.
        device: of the results.

    Returns:
        New tensors by the keys of this rank's target parts, of the source's dtype.

    Raises:
        ValueError: the layouts are of different models or worlds; only some holders have a tensor,
            or its dtype differs between them; a local tensor does not have its part's shape.
    """
    peers = Peers(group)
    dtypes = existing(source, local, group, refusal(source, target))
    there = target.ranks[peers.rank]
    result = {
        key: torch.empty(part.local_shape, dtype=dtypes[part.name], device=device)
        for key, part in there.items()
        if part.name in dtypes
    }
    for names in batches(source, dtypes):
        plan = [move for name in names for move in moves(source, target, name, peers.rank)]
        send_and_receive(plan, dtypes, source, local, result, peers)
    return result


def refusal(source: AllParts, target: AllParts) -> str:
    """Why the source layout cannot be resharded to the target; "" if it can."""
    if len(source.ranks) != len(target.ranks):
        return f"the layouts have {len(source.ranks)} and {len(target.ranks)} ranks"
    if source.shapes != target.shapes:
        odd = {*source.shapes.items()} ^ {*target.shapes.items()}
        return f"the layouts are of different models: compare {min(odd)[0]!r}"
    return ""


def existing(
    parts: AllParts,
    local: Mapping[str, torch.Tensor | None],
    group: dist.ProcessGroup | None = None,
    error: str = "",
) -> dict[str, torch.dtype]:
    """Agree on the tensors that exist: plain name -> dtype. Every rank of the world calls it.

    Raises:
        ValueError: on all ranks, if on one rank `error` is not empty or a local tensor does not
            have its part's shape; or if a tensor's holders do not all have it, in the same dtype.
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if len(parts.ranks) != world:
        raise ValueError(
            f"the parts are of {len(parts.ranks)} ranks, but the group has {world} ranks"
        )
    own = parts.ranks[rank]
    for key, tensor in local.items():
        if key not in own:
            error = error or f"{key!r} has no part"
        elif tensor is not None and tuple(tensor.shape) != own[key].local_shape:
            error = error or f"the tensor of {own[key]} has shape {tuple(tensor.shape)}"
    present = {key: str(tensor.dtype) for key, tensor in local.items() if tensor is not None}
    # Exchange errors too: if one rank raised alone, the others would wait for its messages.
    told = exchange([error, present], group)
    for rank, (wrong, _) in enumerate(told):
        if wrong:
            raise ValueError(f"rank {rank}: {wrong}")
    return agreed(parts, [theirs for _, theirs in told])


def agreed(parts: AllParts, told: list[dict[str, str]]) -> dict[str, torch.dtype]:
    """Combine the dtypes that each rank reports for its keys: plain name -> dtype."""
    said: dict[str, set] = {name: set() for name in parts.shapes}
    for rank, own in enumerate(parts.ranks):
        for key, part in own.items():
            # A rank with an empty part may have no tensor for it.
            if part.numel or key in told[rank]:
                said[part.name].add(told[rank].get(key))
    found = {}
    for name, dtypes in said.items():
        if len(dtypes) > 1:
            raise ValueError(
                f"{name}: the ranks that hold it have different dtypes, or some have no tensor: "
                f"{sorted(map(str, dtypes))}"
            )
        if dtype := next(iter(dtypes), None):
            found[name] = getattr(torch, dtype.removeprefix("torch."))
    return found


def batches(source: AllParts, dtypes: Mapping[str, torch.dtype]) -> Iterator[list[str]]:
    """Yield the names of about TOGETHER bytes of tensors at a time."""
    names, size = [], 0
    for name, dtype in dtypes.items():
        shape = source.shapes[name]
        names.append(name)
        size += volume(tuple((0, n) for n in shape)) * dtype.itemsize
        if size >= TOGETHER:
            yield names
            names, size = [], 0
    if names:
        yield names


def send_and_receive(plan: list[Move], dtypes, source: AllParts, local, result, peers: Peers):
    """Carry out these moves. Numbers are sent as bytes, so that any dtype works."""
    device = carrier(peers.group)
    going: list[list[torch.Tensor]] = [[] for _ in range(peers.size)]
    coming = [0] * peers.size
    for move in plan:
        if move.sender == move.receiver:
            move.received(result).copy_(move.sent(local))
        elif move.sender == peers.rank:
            going[move.receiver].append(in_a_row(move.sent(local)).view(torch.uint8).to(device))
        else:
            coming[move.sender] += volume(move.box) * result[move.target[0]].dtype.itemsize
    nothing = torch.empty(0, dtype=torch.uint8, device=device)
    inputs = [torch.cat(rows) if rows else nothing for rows in going]
    outputs = [torch.empty(size, dtype=torch.uint8, device=device) for size in coming]
    pairwise_all_to_all(outputs, inputs, peers.group)
    at = [0] * peers.size
    for move in plan:
        if move.receiver == peers.rank != move.sender:
            place = move.received(result)
            start, stop = at[move.sender], at[move.sender] + place.nbytes
            # Clone first: the slice may not start at an address that its dtype allows.
            row = outputs[move.sender][start:stop].clone().view(place.dtype)
            place.copy_(row.view(place.shape))
            at[move.sender] = stop
