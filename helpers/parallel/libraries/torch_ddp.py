"""PyTorch's own DistributedDataParallel as a Strategy: the oracle for our DDP."""

from contextlib import nullcontext

from torch.nn.parallel import DistributedDataParallel

from helpers.models.initialization import build
from helpers.parallel.libraries.loss import Loss
from helpers.parallel.libraries.strategy import Library
from helpers.state.placing import whole


class TorchDataParallel(Library):
    """The single process's model in PyTorch's DDP.

    Args:
        config, seed, mesh, dtype, device, optimizer, micro_batches: as for Trainer; the mesh has
            one axis, "dp".
        options: DDP's own: `bucket_cap_mb`, `gradient_as_bucket_view`, `find_unused_parameters`, …
    """

    def make(self, config, seed, dtype, **options):
        self.model = build(config, seed, dtype, self.device)
        self.parameters = dict(self.model.named_parameters())
        parts = {name: whole(self.mesh, name, p.shape) for name, p in self.parameters.items()}
        trained = {name: p for name, p in self.parameters.items() if p.requires_grad}
        self.optimizer = self.rule.make(trained, parts)
        self.wrap(Loss(self.model), **options)

    def wrap(self, module: Loss, **options):
        group = self.mesh.group("dp")
        self.replica = DistributedDataParallel(module, process_group=group, **options)

    def loss(self, micro):
        return self.replica(micro)

    def turn(self, last):
        return nullcontext() if last else self.replica.no_sync()
