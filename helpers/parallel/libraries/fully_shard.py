"""PyTorch's FSDP2, `fully_shard`, as a Strategy: the oracle for our ZeRO stage 3."""

import torch
from torch.distributed.fsdp import fully_shard

from helpers.comm.mesh import Mesh
from helpers.comm.transport import GroupTransport
from helpers.data.batch import Batch
from helpers.models.gpt import build
from helpers.parallel.libraries.dtensor import DTensorParallel
from helpers.parallel.optimizer import OptimizerConfig, set_lr
from helpers.parallel.strategy import Step
from helpers.parallel.sums import GlobalSum
from helpers.state.placing import whole


class FullyShard(DTensorParallel):
    """The plain GPT, with `fully_shard` on each block and on the model.

    FSDP averages gradients over ranks, but a Strategy needs the gradient of the global mean over
    targets. So each rank multiplies its summed loss by N and divides it by the targets of all
    ranks.

    Args:
        config, seed, mesh, dtype, device, optimizer, micro_batches: as for Trainer; the mesh has
            one axis, "dp".
        options: of `fully_shard`: `reshard_after_forward`, `mp_policy`, …

    Raises:
        ValueError: the mesh has other axes.
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
        if mesh.layout.axes != ("dp",):
            raise ValueError(f"make the mesh with the axis dp only, not {mesh.layout!r}")
        self.rule, self.micro_batches = optimizer or OptimizerConfig(), micro_batches
        self.world_size = self.data_size = mesh.layout.world_size
        self.data_rank, self.device = mesh.index("dp"), torch.device(device)
        self.group = GroupTransport(mesh.group("dp"))
        self.model = build(config, seed, dtype, device)
        for block in self.model.blocks.values():
            fully_shard(block, mesh=mesh.device_mesh, **options)
        fully_shard(self.model, mesh=mesh.device_mesh, **options)
        self.parameters = dict(self.model.named_parameters())
        parts = {name: whole(mesh, name, p.shape) for name, p in self.parameters.items()}
        self.optimizer = self.rule.make(self.parameters, parts)

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        self.optimizer.zero_grad()
        tokens = GlobalSum([self.group], self.device, batch.counted()).send().wait()
        loss = GlobalSum([self.group], self.device)
        parts = batch.to(self.device).micro(self.micro_batches)
        for left, micro in zip(reversed(range(len(parts))), parts, strict=True):
            self.model.set_requires_gradient_sync(left == 0)
            total, _ = self.model.loss(micro)
            loss.add(total.detach())
            (total * (self.data_size / tokens.clamp(min=1))).backward()
        norm = self.clip()
        set_lr(self.optimizer, self.rule.lr if lr is None else lr)
        self.optimizer.step()
        mean = loss.send().wait() / tokens.clamp(min=1)
        return Step(loss=mean, grad_norm=norm, tokens=int(tokens))

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, int]:
        self.model.eval()
        try:
            values = self.model.loss(batch.to(self.device))
        finally:
            self.model.train()
        loss, count = (GlobalSum([self.group], self.device, float(v)).send() for v in values)
        return float(loss.wait()), int(count.wait())
