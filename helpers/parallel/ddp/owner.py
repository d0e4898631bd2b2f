"""The replicated owner: each rank holds everything, and gradients are summed over replicas."""

from collections.abc import Callable

from helpers.comm.transport import GroupTransport
from helpers.parallel.ddp.overlapped import DDP
from helpers.parallel.ddp.replicas import Replica
from helpers.parallel.owners.local import Local, said_by


class Replicated(Local):
    """Local, with replicas (naive, bucketed or overlapped) that sum over the ranks along `sums`.

    Parameters that are on the same ranks share a replica: a parameter that only some ranks hold (an
    expert) is summed over those. A transport may be lossy: see `said_by`.

    Args:
        model, parts, mesh, sums, rule, precision, dtype, device: as for Local.
        replica: NaiveDDP, BucketedDDP or DDP.
        transport: makes the transport of the messages from a process group.
        options: for `replica`.
    """

    wants = frozenset({"gradients"})

    def __init__(
        self,
        model,
        parts,
        mesh,
        *,
        replica: type[Replica] = DDP,
        transport: Callable[..., GroupTransport] = GroupTransport,
        sums=(),
        rule,
        precision,
        dtype,
        device="cpu",
        **options,
    ):
        seams = {"sums": sums, "rule": rule, "precision": precision, "dtype": dtype}
        super().__init__(model, parts, mesh, device=device, **seams)
        if replica is DDP:
            options["hooks"] = False  # the engine reports gradients
        trained = {name for name, p in self.parameters.items() if p.requires_grad}
        self.replicas: dict[tuple[int, ...], Replica] = {}
        for ranks in sorted({self.replicas_of[name] for name in trained} - {()}):
            self.replicas[ranks] = replica(
                model,
                transport(self.groups[ranks]),
                average=False,
                same=True,
                only={name for name in trained if self.replicas_of[name] == ranks},
                **options,
            )
        self.lossy, self.bound = said_by(one.transport for one in self.replicas.values())
        if options.get("message_dtype") not in (None, next(iter(self.parameters.values())).dtype):
            self.lossy, self.bound = f"gradients are sent as {options['message_dtype']}", 0.1

    @property
    def replica(self) -> Replica:
        """The replica of the parameters that all ranks along `sums` hold."""
        return self.replicas[max(self.replicas, key=len)]

    def begin(self):
        super().begin()
        for replica in self.replicas.values():
            if isinstance(replica, DDP):
                forget(replica)

    def gradient(self, name: str, last: bool):
        if ranks := self.replicas_of[name]:
            self.replicas[ranks].gradient(name, last)

    def complete(self):
        for replica in self.replicas.values():
            replica.synchronize()
        self.sum_what_is_left(done=self.replicas)
        self.collect(self.values)

    def close(self):
        for replica in self.replicas.values():
            replica.close()
            replica.transport.close()


def forget(replica: DDP):
    """Forget a backward that has failed, so that another one may run."""
    for bucket in replica.buckets:
        if bucket.work is not None:
            bucket.finish()
        bucket.missing = set(bucket.parameters)
    replica.started, replica.came = 0, {}
