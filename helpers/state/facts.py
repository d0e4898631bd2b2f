"""Exchange small facts between ranks (parts, dtypes, counts). Nothing is unpickled."""

import torch
import torch.distributed as dist

from helpers.comm.collectives import pairwise_all_to_all
from helpers.comm.messages import Peers
from helpers.runtime.plain import decode, encode


def exchange(fact, group: dist.ProcessGroup | None = None) -> list:
    """Gather the facts of all ranks, in the group's order. Every rank of the group calls it.

    Args:
        fact: plain data, as `runtime.plain` encodes it.
    """
    peers, device = Peers(group), carrier(group)
    data = bytearray(encode({"the fact": fact}))
    own = torch.frombuffer(data, dtype=torch.uint8).to(device)
    size = torch.tensor([own.numel()], device=device)
    sizes = [torch.empty_like(size) for _ in range(peers.size)]
    pairwise_all_to_all(sizes, [size] * peers.size, group)
    found = [torch.empty(int(n), dtype=torch.uint8, device=device) for n in sizes]
    pairwise_all_to_all(found, [own] * peers.size, group)
    return [decode(bytes(row.tolist()))[0] for row in found]


def carrier(
    group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu"
) -> torch.device:
    """The device from which this group can send a tensor of `device`.

    That is `device` itself if the group supports it, else the CPU (gloo alone) or the GPU (NCCL
    alone).
    """
    backends = dist.get_backend_config(group)  # "cpu:gloo,cuda:nccl"
    for kind in (torch.device(device).type, "cpu"):
        if f"{kind}:" in backends:
            return torch.device(device if kind == torch.device(device).type else kind)
    return torch.device("cuda", torch.cuda.current_device())
