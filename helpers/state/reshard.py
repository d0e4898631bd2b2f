"""From the parts of one layout to those of any other: only the numbers that a rank lacks travel."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from helpers.comm.collectives import pairwise_all_to_all
from helpers.comm.messages import Peers, in_a_row
from helpers.state.all_parts import AllParts
from helpers.state.facts import carrier, exchange
from helpers.state.pieces import Box, Piece, common, inside, slices, volume

TOGETHER = 64 * 2**20  # bytes of plain tensors whose numbers travel together


@dataclass(frozen=True)
class Move:
    """A box that one rank holds and another needs; the two may be one."""

    sender: int
    source: tuple[str, Piece]  # key and piece there
    receiver: int
    target: tuple[str, Piece]
    box: Box

    def sent(self, local: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A view of the sender's numbers."""
        key, piece = self.source
        return piece.of(local[key])[slices(inside(self.box, piece.box))]

    def received(self, local: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A view of their place at the receiver."""
        key, piece = self.target
        return piece.of(local[key])[slices(inside(self.box, piece.box))]


def moves(source: AllParts, target: AllParts, name: str, rank: int) -> Iterator[Move]:
    """What this rank sends, receives and copies of one plain tensor, in an order that is the same
    on both sides. A rank that holds the numbers keeps its own; else the holders take turns."""
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
    """Give every rank its parts of another layout. Every rank of the world calls it.

    What a rank holds already is copied, not sent. A smaller layout fits into a larger world: the
    ranks beyond it have no parts, {}.

    Args:
        source, target: the two layouts: the same plain names and shapes, and as many ranks as the
            group.
        local: this rank's tensors by the keys of its source parts, of any dtype. A tensor that is
            None on all of its holders (a gradient of a frozen parameter) is left out.
        device: of the results.

    Returns:
        This rank's tensors by the keys of its target parts; new ones, of the source's dtype.

    Raises:
        ValueError: layouts of different models or worlds; a tensor that only some of its holders
            have, or have in two dtypes; a local tensor of another shape than its part.
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
    """Why one layout cannot be resharded to the other; "" if it can."""
    if len(source.ranks) != len(target.ranks):
        return f"the layouts are of {len(source.ranks)} and {len(target.ranks)} ranks"
    if source.shapes != target.shapes:
        odd = {*source.shapes.items()} ^ {*target.shapes.items()}
        return f"the layouts are of different models: see {min(odd)[0]!r}"
    return ""


def existing(
    parts: AllParts,
    local: Mapping[str, torch.Tensor | None],
    group: dist.ProcessGroup | None = None,
    error: str = "",
) -> dict[str, torch.dtype]:
    """plain name -> dtype, of the tensors that the ranks have. Every rank of the world calls it.

    Raises:
        ValueError: on all ranks, if `error` is not empty on one, a local tensor has another shape
            than its part, or the holders of a tensor do not all have it, in one dtype.
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if len(parts.ranks) != world:
        raise ValueError(f"the parts are of {len(parts.ranks)} ranks, and the group has {world}")
    own = parts.ranks[rank]
    for key, tensor in local.items():
        if key not in own:
            error = error or f"{key!r} has no part"
        elif tensor is not None and tuple(tensor.shape) != own[key].local_shape:
            error = error or f"the tensor of {own[key]} is {tuple(tensor.shape)}"
    present = {key: str(tensor.dtype) for key, tensor in local.items() if tensor is not None}
    told = exchange([error, present], group)  # all ranks stop, or none: the others would wait
    for rank, (wrong, _) in enumerate(told):
        if wrong:
            raise ValueError(f"rank {rank}: {wrong}")
    return agreed(parts, [theirs for _, theirs in told])


def agreed(parts: AllParts, told: list[dict[str, str]]) -> dict[str, torch.dtype]:
    """The dtypes of the tensors that exist, from what each rank says of its keys."""
    said: dict[str, set] = {name: set() for name in parts.shapes}
    for rank, own in enumerate(parts.ranks):
        for key, part in own.items():
            # A rank with an empty share need not have a tensor for it.
            if part.numel or key in told[rank]:
                said[part.name].add(told[rank].get(key))
    found = {}
    for name, dtypes in said.items():
        if len(dtypes) > 1:
            raise ValueError(f"{name} is of {sorted(map(str, dtypes))} on different ranks")
        if dtype := next(iter(dtypes), None):
            found[name] = getattr(torch, dtype.removeprefix("torch."))
    return found


def batches(source: AllParts, dtypes: Mapping[str, torch.dtype]) -> Iterator[list[str]]:
    """Names of neighbouring tensors, about TOGETHER bytes at a time."""
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
    """Carry out these moves: numbers travel as bytes, so that any dtype can."""
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
            # A clone: a row of bytes may not begin where its dtype needs it to.
            row = outputs[move.sender][start:stop].clone().view(place.dtype)
            place.copy_(row.view(place.shape))
            at[move.sender] = stop
