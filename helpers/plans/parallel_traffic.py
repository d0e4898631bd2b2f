"""Bytes that one GPU sends in a step: ZeRO stage 3 beside tensor and pipeline parallelism.

N  GPUs                 P  parameters        D  width
G  tokens in a global   L  blocks            m  micro-batches of each rank in a step
   batch                                     e  bytes of a number

    stage 3            m times: two all-gathers of the parameters
                       and a reduce-scatter of the gradients          3 m P (N-1)/N e
    tensor parallel    in each block two all-reduces of the
                       activations, forward and backward              8 L G D (N-1)/N e
    pipeline parallel  an inner stage sends each token's activations
                       forward, and their gradients backward          2 G D e

Stage 3 sends the model, whatever the batch. Model parallelism sends activations, whatever the size
of the model's matrices. So with large batches stage 3 sends less, and with few tokens per GPU model
parallelism does.

Every collective is a ring. Embedding, head and norms between the blocks are left out of tensor
parallelism's formula, and so is what recomputation repeats.

Sources: Rajbhandari et al. 2020, arXiv:1910.02054, section 7.2.2 (stage 3); Narayanan et al. 2021,
"Efficient large-scale language model training on GPU clusters using Megatron-LM", arXiv:2104.04473,
sections 3.2 (tensor and pipeline parallelism) and 5.2 (beside ZeRO stage 3).
"""

from helpers.plans.messages import Message
from helpers.plans.zero_traffic import zero_traffic

WAYS = ("stage 3", "tensor parallel", "pipeline parallel")


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


def tokens_of_equal_traffic(
    *, params: float, layers: int, width: int, micro_batches: int = 1
) -> float:
    """The tokens of a global batch at which stage 3 and tensor parallelism send as much: G.

    With more tokens, stage 3 sends less. N and e cancel: G = 3 m P / (8 L D).
    """
    return 3 * micro_batches * params / (8 * layers * width)
