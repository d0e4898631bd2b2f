"""The loss of a model as a module's forward: most libraries wrap a module, and call it."""

import torch

from helpers.data.batch import Batch


class Loss(torch.nn.Module):
    """Call `model.loss(batch)` in the forward."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model.loss(batch)
