"""A model whose call is its loss: what libraries wrap, for they act in a module's `forward`."""

import torch

from helpers.data.batch import Batch


class Loss(torch.nn.Module):
    """Calls `model.loss(batch)`."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model.loss(batch)
