"""PyTorch's own DistributedDataParallel as a Strategy: the oracle for our DDP."""

import torch
from torch.nn.parallel import DistributedDataParallel

from helpers.comm.mesh import Mesh
from helpers.data.batch import Batch
from helpers.parallel.libraries.loss import Loss
from helpers.parallel.optimizer import OptimizerConfig, set_lr
from helpers.parallel.recipe import Recipe
from helpers.parallel.strategy import Step
from helpers.parallel.sums import GlobalSum
from helpers.parallel.trainer import Trainer


class TorchDataParallel(Trainer):
    """The single process's model in PyTorch's DDP.

    DDP averages gradients over ranks, but a Strategy needs the gradient of the global mean over
    targets. So each rank multiplies its summed loss by N and divides it by the targets of all
    ranks.

    Args:
        config, seed, mesh, dtype, device, optimizer, micro_batches: as for Trainer; the mesh's axis
            "dp" has the replicas.
        options: DDP's own: `bucket_cap_mb`, `gradient_as_bucket_view`, `find_unused_parameters`, …
    """

    def __init__(
        self,
        config,
        seed: int,
        mesh: Mesh,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        optimizer: OptimizerConfig | None = None,
        micro_batches: int = 1,
        **options,
    ):
        own = {"dtype": dtype, "device": device, "optimizer": optimizer}
        super().__init__(Recipe(), config, seed, mesh, micro_batches=micro_batches, **own)
        self.replica = DistributedDataParallel(
            Loss(self.model), process_group=mesh.group("dp"), **options
        )

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        self.optimizer.zero_grad()
        tokens = GlobalSum(self.groups, self.device, batch.counted()).send().wait()
        loss = GlobalSum(self.groups, self.device)
        weight = self.data_size / tokens.clamp(min=1)
        *first, last = batch.to(self.device).micro(self.micro_batches)
        with self.replica.no_sync():
            for micro in first:
                loss.add(self.backward(micro, weight))
        loss.add(self.backward(last, weight))
        most = float("inf") if self.rule.clip is None else self.rule.clip
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), most)
        set_lr(self.optimizer, self.rule.lr if lr is None else lr)
        self.optimizer.step()
        mean = loss.send().wait() / tokens.clamp(min=1)
        return Step(loss=mean, grad_norm=norm, tokens=int(tokens))

    def backward(self, micro: Batch, weight: torch.Tensor) -> torch.Tensor:
        """Run forward and backward of one micro-batch, and return its summed loss."""
        loss, _ = self.replica(micro)
        (loss * weight).backward()
        return loss.detach()
