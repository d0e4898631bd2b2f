"""Solutions of week 1."""

import torch
import torch.distributed as dist


def global_mean(worker, values):
    """Sum and count travel together; only then is there something to divide."""
    total = torch.tensor([values.sum().item(), len(values)], dtype=torch.float64)
    total = total.to(worker.device)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
