"""The step of data parallel training on a cluster: how much communication the backward can hide.

The model counts 2 N T FLOPs for the forward and 4 N T for the backward, with N parameters and T
tokens per GPU. Gradients become ready in buckets, evenly over the backward. One all-reduce runs at
a time, as in PyTorch's DistributedDataParallel (Li et al. 2020, arXiv:2006.15704). The model leaves
out the optimizer's time, attention's FLOPs, stragglers, and the multiprocessors that NCCL's kernels
take from the backward.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.plans.messages import ring_factor
from helpers.simulate.collective_time import fastest, seconds
from helpers.simulate.topology import Topology

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one training step.

    Attributes:
        forward, backward: computation alone.
        communication: all all-reduces, one after another.
        exposed: the wait for communication after the end of the backward.
        algorithm: of the all-reduces.
    """

    forward: float
    backward: float
    communication: float
    exposed: float
    algorithm: str

    @property
    def computing(self) -> float:
        return self.forward + self.backward

    @property
    def seconds(self) -> float:
        return self.computing + self.exposed

    @property
    def efficiency(self) -> float:
        """Computing over the whole step: 1 where all communication hides."""
        return self.computing / self.seconds


def step(
    *,
    parameters: float,
    tokens: float,
    topology: Topology,
    flops_per_second: float,
    bucket_bytes: float = 25 * MIB,
    gradient_bytes: float = 2,
    algorithm: str | None = None,
) -> Step:
    """One training step, with the gradients averaged over all GPUs of the topology.

    Args:
        parameters: N.
        tokens: T, on each GPU.
        flops_per_second: of one GPU, sustained: its peak times its utilisation (MFU) without
            communication.
        bucket_bytes: the cap of a bucket; DistributedDataParallel's default is 25 MiB.
        gradient_bytes: of one number in the messages: 2 for bf16, 4 for fp32.
        algorithm: one of `collective_time.ALGORITHMS`; None: the fastest for a bucket.

    Raises:
        ValueError: a number is not positive, or no such algorithm.
    """
    require_positive(parameters=parameters, tokens=tokens, flops_per_second=flops_per_second)
    require_positive(bucket_bytes=bucket_bytes, gradient_bytes=gradient_bytes)
    forward = 2 * parameters * tokens / flops_per_second
    backward = 2 * forward
    count = max(1, math.ceil(parameters * gradient_bytes / bucket_bytes))
    bucket = parameters * gradient_bytes / count
    algorithm = algorithm or fastest("all_reduce", bucket, topology)
    message = seconds("all_reduce", bucket, topology, algorithm)
    free = 0.0  # when the links have sent all buckets so far, counted from the backward's start
    for k in range(1, count + 1):
        free = max(free, backward * k / count) + message
    return Step(
        forward=forward,
        backward=backward,
        communication=count * message,
        exposed=max(0.0, free - backward),
        algorithm=algorithm,
    )


def weak(gpus: Iterable[int], *, tokens: float, topology: Topology, **model) -> dict[int, Step]:
    """Weak scaling: each GPU keeps its `tokens`, and the global batch grows. GPUs -> `Step`.

    Args:
        topology: of any size; `Topology.of` gives that of each number of GPUs.
        model: as `step` has it.
    """
    return {n: step(tokens=tokens, topology=topology.of(n), **model) for n in gpus}


def strong(
    gpus: Iterable[int], *, global_tokens: float, topology: Topology, **model
) -> dict[int, Step]:
    """Strong scaling: all GPUs share `global_tokens`, so each computes less. GPUs -> `Step`.

    Args:
        topology, model: as `weak` has them.
    """
    return {n: step(tokens=global_tokens / n, topology=topology.of(n), **model) for n in gpus}


def hiding_tokens(
    *, flops_per_second: float, bus_bandwidth: float, ranks: float, gradient_bytes: float = 2
) -> float:
    """Tokens per GPU below which the all-reduce takes longer than the backward that hides it.

    The backward takes 4 N T / F seconds, for F FLOP/s. The all-reduce of b N bytes takes
    2 (n-1)/n b N / W seconds, for a bus bandwidth W. Both are equal at

        T = (b / 2) (n-1)/n F / W

    With bf16 gradients, b = 2, and many ranks that is F / W, FLOP/s over bytes/s: a number of the
    machine alone, whatever the model. Assumed: overlap with the backward alone, no latency, buckets
    small beside the model (the last one never hides).

    Args:
        flops_per_second: F, sustained, as `step` has it.
        bus_bandwidth: W in bytes/s.
        ranks: n; infinity is allowed.
        gradient_bytes: b.

    Raises:
        ValueError: a number is not positive.
    """
    require_positive(flops_per_second=flops_per_second, bus_bandwidth=bus_bandwidth, ranks=ranks)
    require_positive(gradient_bytes=gradient_bytes)
    sent = ring_factor("all_reduce", ranks) * gradient_bytes  # for each parameter
    return sent / 4 * flops_per_second / bus_bandwidth


def require_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} must be positive, not {number}")
