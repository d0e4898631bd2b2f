"""Steps one and two: after the backward, an all-reduce for every gradient, or for every bucket."""

from helpers.parallel.ddp.buckets import Bucket, MiB, assign
from helpers.parallel.ddp.replicas import Replica, refuse_odd


class NaiveDDP(Replica):
    """Data parallel, correct but slow: one message's latency per parameter, and no overlap.

    Raises:
        UnusedParameters: from `synchronize`, if a parameter got no gradient.
    """

    def synchronize(self):
        if not self.syncing:
            return
        parameters = self.trained()
        self.refuse_unused(name for name, p in parameters.items() if p.grad is None)
        for name, parameter in parameters.items():
            refuse_odd(name, parameter.grad)
            if self.average:
                parameter.grad /= self.transport.size
            self.transport.all_reduce(parameter.grad).wait()


class BucketedDDP(Replica):
    """Data parallel with fewer, larger messages: one latency per bucket. Nothing overlaps yet.

    Args:
        module, transport, options: as for Replica.
        bucket_cap_mb: a bucket's size in MiB (2^20 bytes).

    Raises:
        UnusedParameters: from `synchronize`, if a parameter got no gradient.
    """

    def __init__(self, module, transport=None, *, bucket_cap_mb: float = 25, **options):
        super().__init__(module, transport, **options)
        parameters = self.trained()
        plan = assign(list(parameters.values()), cap=bucket_cap_mb * MiB)
        names = list(parameters)
        self.buckets = [
            Bucket({names[i]: parameters[names[i]] for i in bucket}, self.transport)
            for bucket in plan
        ]

    def synchronize(self):
        if not self.syncing:
            return
        self.refuse_unused(name for name, p in self.trained().items() if p.grad is None)
        scale = 1 / self.transport.size if self.average else 1.0
        for bucket in self.buckets:
            for name in bucket.parameters:
                bucket.take(name, scale)
            bucket.start()
            bucket.finish()
