"""PyTorch's own DistributedDataParallel as a Strategy: the oracle for ours, and what one uses."""

import torch
from torch.nn.parallel import DistributedDataParallel

from helpers.comm.mesh import Mesh
from helpers.comm.transport import GroupTransport
from helpers.data.batch import Batch
from helpers.models.gpt import GPTConfig, loss_sum
from helpers.parallel.optimizer import OptimizerConfig, clip, set_lr
from helpers.parallel.single import Single
from helpers.parallel.strategy import Step


class TorchDataParallel(Single):
    """The single process with its model in PyTorch's DDP.

    DDP takes the mean over ranks. The gradient of the global mean over targets is wanted, so each
    rank multiplies its summed loss by N and divides it by the targets of all ranks.

    Args:
        config, seed, mesh, dtype, device, optimizer, micro_batches: as for Single; the mesh's axis
            "dp" holds the replicas.
        options: DDP's own: `bucket_cap_mb`, `gradient_as_bucket_view`, `find_unused_parameters`, …
    """

    def __init__(
        self,
        config: GPTConfig,
        seed: int,
        mesh: Mesh,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        optimizer: OptimizerConfig | None = None,
        micro_batches: int = 1,
        **options,
    ):
        super().__init__(
            config,
            seed,
            mesh,
            dtype=dtype,
            device=device,
            optimizer=optimizer,
            micro_batches=micro_batches,
        )
        self.world_size = mesh.layout.world_size
        self.group = GroupTransport(mesh.group("dp"))
        self.data_rank, self.data_size = self.group.rank, self.group.size
        self.replica = DistributedDataParallel(
            self.model, process_group=mesh.group("dp"), **options
        )

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        self.optimizer.zero_grad()
        sums = torch.tensor([0.0, batch.counted()], dtype=torch.float64, device=self.device)
        tokens = sums[1:].clone()
        self.group.all_reduce(tokens).wait()
        weight = self.data_size / tokens.clamp(min=1)
        *first, last = batch.to(self.device).micro(self.micro_batches)
        with self.replica.no_sync():
            for micro in first:
                sums[0] += self.backward(micro, weight)
        sums[0] += self.backward(last, weight)
        self.group.all_reduce(sums).wait()
        norm = clip(self.parameters.values(), self.rule.clip)
        set_lr(self.optimizer, lr)
        self.optimizer.step()
        return Step(loss=sums[0] / sums[1].clamp(min=1), grad_norm=norm, tokens=int(tokens))

    def backward(self, micro: Batch, weight: torch.Tensor) -> torch.Tensor:
        """Forward and backward of one micro-batch; its summed loss."""
        loss, _ = loss_sum(self.replica(micro.tokens), micro.targets)
        (loss * weight).backward()
        return loss.detach()

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        sums = torch.tensor(super().evaluate(batch), dtype=torch.float64, device=self.device)
        self.group.all_reduce(sums).wait()
        return sums[0].item(), int(sums[1])
