"""Choose each rank's GPU, for ranks that a launcher started."""

import json
import socket

import torch
import torch.distributed as dist

from helpers.runtime.launcher import Place


class GPUs:
    """Does every rank have a GPU to itself? All ranks get the same answer.

    There are two ways. The rank's machine shows it at least as many GPUs as it has ranks: the
    rank uses the GPU of its local rank. Or the rank sees exactly one GPU, and no other rank sees
    that GPU (Slurm's `--gpus-per-task=1`).
    """

    def __init__(self, where: Place, store: dist.Store):
        count = torch.cuda.device_count()
        only = str(torch.cuda.get_device_properties(0).uuid) if count == 1 else None
        mine = {
            "host": socket.gethostname(),
            "size": where.local_size,
            "count": count,
            "only": only,
        }
        store.set(f"gpus/{where.rank}", json.dumps(mine))
        keys = [f"gpus/{rank}" for rank in range(where.world_size)]
        everyone = [json.loads(text) for text in store.multi_get(keys)]
        hosts = [other["host"] for other in everyone]
        lone = [other["only"] for other in everyone]

        def size(rank: dict) -> int:
            return rank["size"] or hosts.count(rank["host"])

        def able(rank: dict) -> bool:
            alone = rank["only"] is not None and lone.count(rank["only"]) == 1
            return rank["count"] >= size(rank) or alone

        self.local_size = size(mine)
        self.index = where.local_rank if count >= self.local_size else 0
        cuda = all(able(rank) for rank in everyone)
        self.device, self.backend = ("cuda", "cpu:gloo,cuda:nccl") if cuda else ("cpu", "gloo")
        self.too_few = ""
        if not cuda and any(rank["count"] for rank in everyone):
            short = next(rank for rank in everyone if not able(rank))
            self.too_few = (
                f"{size(short)} rank{'s' * (size(short) != 1)} and {short['count']} "
                f"GPU{'s' * (short['count'] != 1)} on {short['host']}: "
                "running on the CPU, with gloo"
            )
