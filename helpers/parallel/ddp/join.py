"""Train with uneven inputs: a rank without batches still joins the other ranks' collectives."""

from contextlib import contextmanager

import torch

from helpers.comm.transport import replicate
from helpers.parallel.ddp.overlapped import DDP


@contextmanager
def join(ddp: DDP, *, divide_by_all: bool = True):
    """Let each rank loop over its own number of batches.

        with join(ddp):
            for batch in my_batches:
                loss(ddp(batch)).backward(); ddp.synchronize(); optimizer.step(); …

    Each forward that will synchronize first counts the ranks that still have a batch. A rank that
    has left its loop keeps counting, and sends zeros for the others' buckets, until all ranks have
    left. At the end, every rank gets the parameters and buffers of a rank with the most steps. The
    optimizer's state is not synchronized, as in PyTorch's `Join`: make a new optimizer before you
    continue. (`DataParallel` does not need `join`: it weights by tokens, so a shard may be empty.)

    Args:
        divide_by_all: True: the mean over all ranks, with gradient zero for missing batches.
            False: the mean over the ranks that have a batch.

    Source: PyTorch's `torch.distributed.algorithms.Join`, with the same semantics.
    """
    device = next(ddp.module.parameters()).device
    usual, steps = ddp.scale, 0

    def count_active(mine: int) -> int:
        active = torch.tensor([mine], device=device)
        ddp.transport.all_reduce(active).wait()
        return int(active)

    def before_forward(*_):
        nonlocal steps
        if torch.is_grad_enabled() and ddp.syncing:
            steps += 1
            active = count_active(1)
            if ddp.average and not divide_by_all:
                ddp.scale = 1 / active

    hook = ddp.register_forward_pre_hook(before_forward)
    try:
        yield
        while count_active(0):
            for parameter in ddp.parameters_by_name.values():
                parameter.grad = None
            ddp.send_what_is_left()
            if ddp.find_unused_parameters:
                ddp.drop_unused(list(ddp.parameters_by_name))
        made = torch.zeros(ddp.transport.size, dtype=torch.int64, device=device)
        made[ddp.transport.rank] = steps
        ddp.transport.all_reduce(made).wait()
        everything = [*ddp.module.parameters(), *ddp.module.buffers()]
        replicate(everything, ddp.transport, source=int(made.argmax()))
    finally:
        hook.remove()
        ddp.scale = usual
