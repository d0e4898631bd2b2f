"""A module whose forward is the loss, for libraries that wrap a module's `forward`."""

import torch

from helpers.data.batch import Batch


class Loss(torch.nn.Module):
    """Call `model.loss(batch)` in the forward."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model.loss(batch)
