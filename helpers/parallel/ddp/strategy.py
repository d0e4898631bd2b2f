"""Data parallel as a Strategy: the whole model on each rank, a shard of each batch."""

from collections.abc import Callable

import torch

from helpers.comm.mesh import Mesh
from helpers.comm.transport import GroupTransport
from helpers.data.batch import Batch
from helpers.models.gpt import GPTConfig, loss_sum
from helpers.parallel.ddp.overlapped import DDP
from helpers.parallel.ddp.replicas import Replica
from helpers.parallel.optimizer import OptimizerConfig, clip, set_lr
from helpers.parallel.single import Single
from helpers.parallel.strategy import Step


class DataParallel(Single):
    """The single process with its model in `DDP`, and losses weighted by tokens.

    Each rank divides its summed loss by the number of targets on *all* ranks; then the sum of the
    ranks' gradients is the gradient of the global mean, also where shards are unequal or empty.
    A mean of the ranks' means would be another number.

    Args:
        config, seed, dtype, optimizer, micro_batches: as for Single.
        mesh: its axis "dp" holds the replicas.
        replica: NaiveDDP, BucketedDDP or DDP; `options` are passed on to it.
        transport: what the buckets travel with: `GroupTransport`, `SharedTransport`; called with
            the process group of the axis.
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
        replica: type[Replica] = DDP,
        transport: Callable[..., GroupTransport] = GroupTransport,
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
        self.group = GroupTransport(mesh.group("dp"))
        self.world_size = mesh.layout.world_size
        self.data_rank, self.data_size = self.group.rank, self.group.size
        self.transport = transport(self.group.group)
        self.replica = replica(self.model, self.transport, average=False, **options)
        if options.get("message_dtype") not in (None, dtype):
            self.lossy = f"gradients travel as {options['message_dtype']}"

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        self.optimizer.zero_grad()
        tokens = torch.tensor([batch.counted()], dtype=torch.float64, device=self.device)
        total = torch.zeros_like(tokens)
        counting = self.group.all_reduce(tokens)
        micros = batch.to(self.device).micro(self.micro_batches)
        for left, micro in zip(reversed(range(len(micros))), micros, strict=True):
            loss, _ = loss_sum(self.replica(micro.tokens), micro.targets)
            total += loss.detach()
            counting.wait()  # it travelled during the forward, as `total` does during the backward
            if left:
                with self.replica.no_sync():
                    (loss / tokens.clamp(min=1)).backward()
            else:
                summing = self.group.all_reduce(total)
                (loss / tokens.clamp(min=1)).backward()
        self.replica.synchronize()
        norm = clip(self.parameters.values(), self.rule.clip)
        set_lr(self.optimizer, lr)
        self.optimizer.step()
        summing.wait()
        count = int(tokens)
        return Step(loss=total[0] / max(count, 1), grad_norm=norm, tokens=count)

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        sums = torch.tensor(super().evaluate(batch), dtype=torch.float64, device=self.device)
        self.group.all_reduce(sums).wait()
        return sums[0].item(), int(sums[1])

    def close(self):
        self.transport.close()
