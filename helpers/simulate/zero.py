"""The step of ZeRO-3 on a cluster: how much of its gathers and reduce-scatters stays visible.

The model has equal units, n parameters each. A unit's forward takes 2 n T FLOPs and its backward
4 n T, for T tokens per GPU. Its parameters are gathered before both, one unit ahead, and its
gradients are reduce-scattered after the backward. One message is under way at a time, in the order
in which messages are asked for. Left out: what `data_parallel` leaves out, and recomputation.

Compute hides the messages from the same number of tokens on as with data parallel
(`data_parallel.hiding_tokens`): the forward hides one message of 2 n bytes behind 2 n T FLOPs, the
backward two messages behind 4 n T.
"""

from helpers.simulate.collective_time import fastest, seconds
from helpers.simulate.data_parallel import Step, require_positive
from helpers.simulate.topology import Topology


def zero_3_step(
    *,
    parameters: float,
    units: int,
    tokens: float,
    topology: Topology,
    flops_per_second: float,
    number_bytes: float = 2,
    algorithm: str | None = None,
) -> Step:
    """One training step of ZeRO-3 over all GPUs of the topology.

    Args:
        parameters: of the whole model.
        units: parts of equal size that are gathered one after another: the model's blocks.
        tokens: T, on each GPU.
        flops_per_second: of one GPU, sustained, as `data_parallel.step` has it.
        number_bytes: of a parameter or gradient in the messages: 2 for bf16.
        algorithm: one of `collective_time.ALGORITHMS`; None: the fastest for a unit.

    Returns:
        A Step. `communication` is the time of all messages, one after another, and `exposed` is
        the time of the step in which the GPU waits for them.

    Raises:
        ValueError: a number is not positive, or no such algorithm.
    """
    require_positive(parameters=parameters, units=units, tokens=tokens)
    require_positive(flops_per_second=flops_per_second, number_bytes=number_bytes)
    size = parameters / units * number_bytes
    algorithm = algorithm or fastest("all_gather", size, topology)
    gather = seconds("all_gather", size, topology, algorithm)
    scatter = seconds("reduce_scatter", size, topology, algorithm)
    forward = 2 * parameters / units * tokens / flops_per_second  # of one unit
    now = link = 0.0  # when the GPU, and the link, have done all that was asked of them so far
    waited = 0.0
    for backward in (False, True):
        link = gathered = max(now, link) + gather
        for unit in range(units):
            waited += max(0.0, gathered - now)  # for this unit's parameters
            now = max(now, gathered)
            if unit < units - 1:
                link = gathered = max(now, link) + gather  # of the next unit
            now += 2 * forward if backward else forward
            if backward:
                link = max(now, link) + scatter
    waited += max(0.0, link - now)  # for the last gradients
    return Step(
        forward=units * forward,
        backward=units * 2 * forward,
        communication=units * (2 * gather + scatter),
        exposed=waited,
        algorithm=algorithm,
    )
