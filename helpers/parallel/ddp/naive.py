"""Step one: after the backward, an all-reduce for every gradient."""

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
