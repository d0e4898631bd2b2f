"""Data parallel as a Strategy: the whole model on each rank, a shard of each batch."""

from collections.abc import Callable
from functools import partial

from helpers.comm.transport import GroupTransport
from helpers.parallel.ddp.overlapped import DDP
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.ddp.replicas import Replica
from helpers.parallel.precision import Plain
from helpers.parallel.trainer import Recipe, Trainer


class DataParallel(Trainer):
    """Train with a replica on each rank, and losses weighted by tokens.

    Each rank divides its summed loss by the number of targets on *all* ranks. Then the sum of the
    ranks' gradients is the gradient of the global mean, even if shards are unequal or empty. The
    mean of the ranks' means would be a different number.

    Args:
        config, seed, mesh: as for Trainer; the mesh's axis "dp" has the replicas.
        replica: NaiveDDP, BucketedDDP or DDP.
        transport: `GroupTransport` or `SharedTransport`: makes the transport of the messages from
            the axis's process group.
        precision: as for Recipe.
        options: dtype, device, optimizer, micro_batches as for Trainer; all others for `replica`.
    """

    def __init__(
        self,
        config,
        seed,
        mesh,
        *,
        replica: type[Replica] = DDP,
        transport: Callable[..., GroupTransport] = GroupTransport,
        precision: Plain | None = None,
        **options,
    ):
        own = {"dtype", "device", "optimizer", "micro_batches"}
        for_replica = {name: options.pop(name) for name in options.keys() - own}
        owner = partial(Replicated, replica=replica, transport=transport, **for_replica)
        recipe = Recipe(owner=owner, precision=precision or Plain())
        super().__init__(recipe, config, seed, mesh, **options)
