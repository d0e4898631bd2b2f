"""Bytes that one rank sends in a training step, by ZeRO stage.

P  parameters        N  ranks        m  micro-batches in a step

    stage 0    all-reduce of the gradients, once                          2 P (N-1)/N numbers
    stage 1    reduce-scatter of the gradients, all-gather of the
               updated parameters, each once                              2 P (N-1)/N
    stage 2    a reduce-scatter for each micro-batch, one all-gather      (m + 1) P (N-1)/N
    stage 3    for each micro-batch: an all-gather for the forward, an
               all-gather for the backward, a reduce-scatter              3 m P (N-1)/N

Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 7: 2 P for data parallel and for
stages 1 and 2, 3 P for stage 3. The paper drops (N-1)/N, and counts one micro-batch.

Recomputation changes none of these: after the forward a block is gathered exactly once more, and
its recomputed forward and its backward share that gather.
"""

from helpers.plans.zero_memory import ranks_of, stage_of


def zero_traffic(
    params: float,
    world: int,
    stage: int,
    *,
    parameter_bytes: float = 2,
    gradient_bytes: float = 2,
    micro_batches: int = 1,
    reshard: bool = True,
) -> dict[str, float]:
    """Bytes that one rank sends in a step, by collective: {"all_gather": bytes, …}.

    Every collective is a ring, which sends the least bytes. gloo's own reduce-scatter sends twice
    as many.

    Args:
        params: P; with a padded layout, the padded number.
        world: N.
        stage: 0, 1, 2 or 3.
        parameter_bytes, gradient_bytes: of one number in the messages; 4 for fp32.
        micro_batches: m. Stages 0 and 1 add up the gradients on the rank and send the sum once.
            Stages 2 and 3 cannot: no rank has room for the whole sum.
        reshard: stage 3 frees the parameters after the forward. If not, the backward uses those
            of the forward, and gathers nothing.

    Raises:
        ValueError: no such stage, no rank, or no micro-batch.
    """
    if micro_batches < 1:
        raise ValueError(f"a step has at least one micro-batch, not {micro_batches}")
    around = params * (ranks_of(world) - 1) / world  # numbers that one rank passes on in a ring
    gradients, parameters = around * gradient_bytes, around * parameter_bytes
    if stage_of(stage) == 0:
        return {"all_reduce": 2 * gradients}
    if stage == 1:
        return {"reduce_scatter": gradients, "all_gather": parameters}
    if stage == 2:
        return {"reduce_scatter": micro_batches * gradients, "all_gather": parameters}
    gathers = 2 if reshard else 1
    return {
        "all_gather": micro_batches * gathers * parameters,
        "reduce_scatter": micro_batches * gradients,
    }
