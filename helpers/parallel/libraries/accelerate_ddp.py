"""Hugging Face Accelerate as a Strategy: the same DDP, behind `Accelerator.prepare`."""

import torch

from helpers.comm.mesh import Mesh
from helpers.data.batch import Batch
from helpers.parallel.libraries.loss import Loss
from helpers.parallel.optimizer import set_lr
from helpers.parallel.recipe import Recipe
from helpers.parallel.strategy import Step
from helpers.parallel.trainer import Trainer


class AccelerateDataParallel(Trainer):
    """The single process, prepared by an `Accelerator`, which finds the ranks that there are.

    Under it stands PyTorch's DDP, so a loss is scaled as there: N times the rank's sum over the
    targets of all ranks. `Accelerator` keeps one state for a process: its group is the whole world.

    Args:
        config, seed, mesh, options: as for Trainer; the mesh has one axis, "dp".

    Raises:
        ValueError: the mesh has other axes.
    """

    def __init__(self, config, seed: int, mesh: Mesh, **options):
        if mesh.layout.axes != ("dp",):
            raise ValueError(f"Accelerate's data parallel takes the whole world: {mesh.layout!r}")
        super().__init__(Recipe(), config, seed, mesh, **options)
        from accelerate import Accelerator  # here: it takes a second to import

        self.accelerator = Accelerator(cpu=self.device.type == "cpu")
        self.replica, self.prepared = self.accelerator.prepare(Loss(self.model), self.optimizer)

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        self.prepared.zero_grad()
        tokens = self.total(batch.counted())
        weight = self.data_size / max(tokens.item(), 1)
        loss_here = torch.zeros((), dtype=torch.float64, device=self.device)
        *first, last = batch.to(self.device).micro(self.micro_batches)
        for micro in first:
            with self.accelerator.no_sync(self.replica):
                loss_here += self.backward(micro, weight)
        loss_here += self.backward(last, weight)
        most = float("inf") if self.rule.clip is None else self.rule.clip
        norm = self.accelerator.clip_grad_norm_(self.replica.parameters(), most)
        set_lr(self.optimizer, self.rule.lr if lr is None else lr)
        self.prepared.step()
        loss = self.total(loss_here.item()) / tokens.clamp(min=1)
        return Step(loss=loss, grad_norm=norm, tokens=int(tokens))

    def backward(self, micro: Batch, weight: float) -> torch.Tensor:
        """Forward and backward of one micro-batch; its summed loss."""
        loss, _ = self.replica(micro)
        self.accelerator.backward(loss * weight)
        return loss.detach()

    def total(self, number: float) -> torch.Tensor:
        """Its sum over the ranks, in float64."""
        mine = torch.tensor(number, dtype=torch.float64, device=self.device)
        return self.accelerator.reduce(mine, reduction="sum")
