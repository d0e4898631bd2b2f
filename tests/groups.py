"""Destroy process groups that no test uses any longer."""

import sys

import torch.distributed as dist


def leave_groups(worker):
    """Destroy all process groups but the world's: each has a thread of gloo that wakes up often.

    With the groups of a hundred tests, these threads took half of the machine's time. DeepSpeed's
    stay: it keeps its groups for the whole process.
    """
    if "deepspeed" in sys.modules:
        return
    world = dist.group.WORLD
    for group in [group for group in dist.distributed_c10d._world.pg_map if group is not world]:
        dist.destroy_process_group(group)
