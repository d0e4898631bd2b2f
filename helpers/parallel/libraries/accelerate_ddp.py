"""Hugging Face Accelerate as a Strategy: PyTorch's DDP, behind `Accelerator.prepare`."""

import torch
from torch.nn.parallel import DistributedDataParallel

from helpers.comm.mesh import Mesh
from helpers.data.batch import Batch
from helpers.parallel.libraries.loss import Loss
from helpers.parallel.libraries.wrapped import expect
from helpers.parallel.optimizer import set_lr
from helpers.parallel.recipe import Recipe
from helpers.parallel.strategy import Step
from helpers.parallel.trainer import Trainer


class AccelerateDataParallel(Trainer):
    """The single process's model, prepared by an `Accelerator`, which detects the ranks.

    It uses PyTorch's DDP, so it scales the loss in the same way: N times the rank's sum, over the
    targets of all ranks. `Accelerator` has one state per process: its group is the whole world.

    Args:
        config, seed, mesh, options: as for Trainer; the mesh has one axis, "dp".

    Raises:
        ValueError: the mesh has other axes.
        WrongWrapper: Accelerate made something else.
    """

    def __init__(self, config, seed: int, mesh: Mesh, **options):
        if mesh.layout.axes != ("dp",):
            raise ValueError(
                f"Accelerate's data parallel uses the whole world: make the mesh with the axis dp "
                f"only, not {mesh.layout!r}"
            )
        super().__init__(Recipe(), config, seed, mesh, **options)
        from accelerate import Accelerator  # imported here because the import takes a second

        self.accelerator = Accelerator(cpu=self.device.type == "cpu")
        self.replica, self.prepared = self.accelerator.prepare(Loss(self.model), self.optimizer)
        expect(self.replica, DistributedDataParallel, "Accelerator.prepare")

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
        """Run forward and backward of one micro-batch, and return its summed loss."""
        loss, _ = self.replica(micro)
        self.accelerator.backward(loss * weight)
        return loss.detach()

    def total(self, number: float) -> torch.Tensor:
        """Sum a number over the ranks, in float64."""
        mine = torch.tensor(number, dtype=torch.float64, device=self.device)
        return self.accelerator.reduce(mine, reduction="sum")
