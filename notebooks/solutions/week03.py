"""Solutions of week 3: data parallel."""

from contextlib import nullcontext

import torch
import torch.distributed as dist

from helpers.models.gpt import loss_sum


def shard(worker, batch):
    """`tensor_split` makes as many parts as there are ranks, some empty; `chunk` may make fewer."""
    return batch.tensor_split(worker.world_size)[worker.rank]


def broadcast_state(worker, model):
    """`detach` shares the memory, and autograd does not look on."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


def reduce_in_buckets(worker, model, bucket_bytes):
    """Gradients come in the same order on every rank, and so the buckets set out in one order."""
    waiting, under_way = [], []

    def send():
        flat = torch.cat([p.grad.flatten() for p in waiting]) / worker.world_size
        under_way.append((dist.all_reduce(flat, async_op=True), flat, list(waiting)))
        waiting.clear()

    def gradient_came(parameter):
        waiting.append(parameter)
        if sum(p.grad.nbytes for p in waiting) >= bucket_bytes:
            send()

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(gradient_came)

    def finish():
        if waiting:
            send()
        for work, flat, parameters in under_way:
            work.wait()
            parts = flat.split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        under_way.clear()

    return finish


def accumulate(worker, ddp, optimizer, micro_batches):
    """Each loss is divided by *all* ranks' tokens; the mean over ranks divides once more."""
    optimizer.zero_grad()
    tokens = torch.tensor(
        sum(batch.counted() for batch in micro_batches), device=worker.device
    )
    dist.all_reduce(tokens)
    for left, batch in zip(
        reversed(range(len(micro_batches))), micro_batches, strict=True
    ):
        with ddp.no_sync() if left else nullcontext():
            loss, _ = loss_sum(ddp(batch.tokens), batch.targets)
            (loss * worker.world_size / tokens).backward()
    ddp.synchronize()
    optimizer.step()


def train_by_mpi(world, model, batches, loss_sum, rate):
    """Gradients, loss and count of targets travel together, in one buffer."""
    from mpi4py import MPI

    rank, size, losses = world.Get_rank(), world.Get_size(), []
    for parameter in model.parameters():
        world.Bcast(parameter.detach().numpy(), root=0)
    for rows in batches:
        loss, count = loss_sum(model, rows.tensor_split(size)[rank])
        model.zero_grad()
        loss.backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters()]
        numbers = torch.tensor([loss.item(), count], dtype=torch.float64)
        shared = torch.cat([*gradients, numbers])
        world.Allreduce(MPI.IN_PLACE, shared.numpy(), op=MPI.SUM)
        shared /= shared[-1].clone()  # the targets of all ranks
        losses.append(shared[-2].item())
        parts = shared[:-2].split([gradient.numel() for gradient in gradients])
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), parts, strict=True):
                parameter -= rate * part.view_as(parameter)
    return losses


def tokens_to_hide(
    flops_per_second, bus_bandwidth, ranks, gradient_bytes, micro_batches
):
    """Set 4 N T / micro_batches / F equal to 2 (n-1)/n N gradient_bytes / W, and solve for T."""
    sent = 2 * (ranks - 1) / ranks * gradient_bytes  # bytes per parameter
    return micro_batches * flops_per_second / 4 * sent / bus_bandwidth
