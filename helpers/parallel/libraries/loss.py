"""The loss of models that a library has wrapped: as a module's forward, and summed over ranks."""

from collections.abc import Callable

import torch

from helpers.comm.transport import GroupTransport
from helpers.data.batch import Batch
from helpers.parallel.sums import GlobalSum


class Loss(torch.nn.Module):
    """Call `model.loss(batch)` in the forward."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model.loss(batch)


@torch.no_grad()
def global_loss(
    module: torch.nn.Module, loss: Callable, batch: Batch, group: GroupTransport
) -> tuple[float, int]:
    """Compute the loss of all ranks' batches in evaluation mode: see `Strategy.evaluate`.

    Args:
        module: its mode is evaluation for this call, then training.
        loss: `loss(batch)` returns this rank's sum and count.
    """
    module.eval()
    try:
        values = loss(batch)
    finally:
        module.train()
    device = values[0].device
    total, count = (GlobalSum([group], device, float(value)).send() for value in values)
    return float(total.wait()), int(count.wait())
