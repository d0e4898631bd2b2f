"""The replicated owner: each rank holds everything, and gradients are summed over replicas."""

from collections.abc import Callable

from helpers.comm.transport import GroupTransport
from helpers.parallel.ddp.overlapped import DDP
from helpers.parallel.ddp.replicas import Replica
from helpers.parallel.owners.local import Local


class Replicated(Local):
    """Local, with a replica (naive, bucketed or overlapped) that sums over the axis "dp".

    Args:
        model, parts, mesh, rule, precision, dtype, device: as for Local. The mesh has an axis "dp".
        replica: NaiveDDP, BucketedDDP or DDP.
        transport: makes the transport of the messages from the axis's process group.
        options: for `replica`.
    """

    wants = frozenset({"gradients"})

    def __init__(
        self,
        model,
        parts,
        mesh,
        *,
        rule,
        precision,
        dtype,
        device="cpu",
        replica: type[Replica] = DDP,
        transport: Callable[..., GroupTransport] = GroupTransport,
        **options,
    ):
        seams = {"rule": rule, "precision": precision, "dtype": dtype, "device": device}
        super().__init__(model, parts, mesh, **seams)
        self.ranks = tuple(mesh.ranks("dp"))
        self.transport = transport(mesh.group("dp"))
        if replica is DDP:
            options["hooks"] = False  # the engine reports gradients
        self.replica = replica(model, self.transport, average=False, same=True, **options)
        if options.get("message_dtype") not in (None, next(iter(self.parameters.values())).dtype):
            self.lossy, self.bound = f"gradients are sent as {options['message_dtype']}", 0.1

    def gradient(self, name: str, last: bool):
        self.replica.gradient(name, last)

    def complete(self):
        self.replica.synchronize()
        self.sum_what_is_left(done=[self.ranks])
        self.precision.collect(self.values, self.masters)

    def close(self):
        self.replica.close()
        self.transport.close()
