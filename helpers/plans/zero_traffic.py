"""Messages of data parallelism by ZeRO stage, as data, beside tensor and pipeline parallelism.

P  parameters        N  ranks                       m  micro-batches in a step
D  width             G  tokens in a global batch    L  blocks        e  bytes of a number

    stage 0    all-reduce of the gradients, once                          2 P (N-1)/N numbers
    stage 1    reduce-scatter of the gradients, all-gather of the
               updated parameters, each once                              2 P (N-1)/N
    stage 2    a reduce-scatter for each micro-batch, one all-gather      (m + 1) P (N-1)/N
    stage 3    for each micro-batch: an all-gather for the forward, an
               all-gather for the backward, a reduce-scatter              3 m P (N-1)/N

Recomputation changes none of these: after the forward a block is gathered exactly once more, and
its recomputed forward and its backward share that gather.

    tensor parallel    in each block two all-reduces of the
                       activations, forward and backward              8 L G D (N-1)/N e bytes
    pipeline parallel  an inner stage sends each token's activations
                       forward, and their gradients backward          2 G D e

Stage 3 sends the model, whatever the batch. Model parallelism sends activations, whatever the size
of the model's matrices. So with large batches stage 3 sends less, and with few tokens per GPU model
parallelism does. Embedding, head and norms between the blocks are left out of tensor parallelism's
formula, and so is what recomputation repeats.

Sources: Rajbhandari et al. 2020, arXiv:1910.02054, section 7: 2 P for data parallel and for
stages 1 and 2, 3 P for stage 3. The paper drops (N-1)/N, and counts one micro-batch. Narayanan et
al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM",
arXiv:2104.04473, sections 3.2 (tensor and pipeline parallelism) and 5.2 (beside ZeRO stage 3).
"""

from collections.abc import Iterable, Sequence

from helpers.plans.messages import Message, wire
from helpers.plans.zero_memory import ranks_of, stage_of

MIB = 2**20
BUCKET, FIRST_BUCKET = 25 * MIB, MIB  # the caps of PyTorch's DistributedDataParallel
WAYS = ("stage 3", "tensor parallel", "pipeline parallel")


def zero_messages(
    rows: Iterable[float],
    world: int,
    stage: int,
    *,
    parameter_bytes: float = 2,
    gradient_bytes: float = 2,
    micro_batches: int = 1,
    reshard: bool = True,
    kept: bool = False,
    axis: str = "dp",
) -> list[Message]:
    """The messages of rows of parameters, each of which is gathered and reduced as one.

    Args:
        rows: numbers of each row on this rank, with padding; for stage 0 of each bucket.
        world: N.
        stage: 0, 1, 2 or 3.
        parameter_bytes, gradient_bytes: of one number in the messages; 4 for fp32.
        micro_batches: m. Stages 0 and 1 add up the gradients on the rank and send the sum once.
            Stages 2 and 3 cannot: no rank has room for the whole sum.
        reshard: stage 3 frees the parameters after the forward. If not, the backward uses those
            of the forward, and gathers nothing.
        kept: stage 3 keeps these rows gathered until the step ends, like a tied embedding.

    Raises:
        ValueError: no such stage, no rank, or no micro-batch.
    """
    if micro_batches < 1:
        raise ValueError(f"a step has at least one micro-batch, not {micro_batches}")
    of = {"axis": axis, "ranks": ranks_of(world)}
    scatters = micro_batches if stage_of(stage) >= 2 else 1
    gathers = micro_batches * (2 if reshard else 1) if stage == 3 and not kept else 1
    found = []
    for row in rows:
        gradients, parameters = row * gradient_bytes, row * parameter_bytes
        if stage == 0:
            found.append(Message(call="all_reduce", payload=gradients, what="gradients", **of))
            continue
        found += [
            Message(call=call, payload=payload, times=times, what=what, **of)
            for call, payload, times, what in (
                ("reduce_scatter", gradients, scatters, "gradients"),
                ("all_gather", parameters, gathers, "parameters"),
            )
        ]
    return found


def zero_traffic(params: float, world: int, stage: int, **options) -> dict[str, float]:
    """Bytes that one rank sends in a step, by collective: {"all_gather": bytes, …}.

    Args:
        params: P; with a padded layout, the padded number.
        world, stage, options: as for `zero_messages`.
    """
    return wire(zero_messages([params], world, stage, **options), "call")


def buckets(
    numbers: Sequence[int], number_bytes: float, cap: float = BUCKET, first: float = FIRST_BUCKET
) -> list[int]:
    """Numbers in each bucket of data parallelism: a bucket closes with the tensor that fills it.

    Args:
        numbers: of the gradients, in the order of the backward.
        cap, first: bytes that fill a bucket, and the first bucket.

    Source: Li et al. 2020, "PyTorch Distributed", arXiv:2006.15704, section 4.2.
    """
    found: list[int] = []
    limit = 0.0
    for one in numbers:
        if not found or found[-1] * number_bytes >= limit:
            limit = cap if found else first
            found.append(0)
        found[-1] += one
    return found


def parallel_traffic(
    *,
    params: float,
    layers: int,
    width: int,
    tokens: int,
    world: int,
    micro_batches: int = 1,
    number_bytes: float = 2,
) -> dict[str, float]:
    """Bytes that one GPU sends in a step, for each of WAYS: the same model, batch and GPUs.

    Args:
        params: P.
        layers: L.
        width: D.
        tokens: G, of the global batch. Under stage 3 the GPUs share them; under tensor and pipeline
            parallelism every GPU works on all of them.
        world: N.
        micro_batches: m, of stage 3. The other ways send as much with any number of micro-batches.
        number_bytes: e.

    Raises:
        ValueError: no rank, or no micro-batch.
    """
    options = {"parameter_bytes": number_bytes, "gradient_bytes": number_bytes}
    sharded = zero_traffic(params, world, 3, micro_batches=micro_batches, **options)
    of = {"payload": tokens * width * number_bytes, "ranks": world, "what": "activations"}
    tensor = Message(axis="tp", call="all_reduce", times=4 * layers, **of)
    pipeline = Message(axis="pp", call="send", times=2 * (world > 1), **of)
    return dict(zip(WAYS, (sum(sharded.values()), tensor.sent, pipeline.sent), strict=True))
