"""The step of tensor-parallel training on a cluster: matrix products shrink, and messages do not.

N GPUs share each matrix product. The work between the layers (norms, dropout, residual sums) runs
on every GPU, unless sequence parallelism cuts it by tokens too. Each block sends two messages in
the forward and two in the backward, and every message waits for its layer: nothing hides.

The model leaves out the optimizer, the loss, the time of small kernels, and the loss of speed when
matrices get narrow. Beside Megatron-LM's published weak scaling to 8 GPUs it is within 6 points.

B  sequences        T  tokens of a sequence        D  width        F  inner width of the MLP
N  GPUs             V  vocabulary                  e  bytes of a number

Sources: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3; Korthikanti et al. 2022,
arXiv:2205.05198, section 4 and appendix A (FLOPs).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from helpers.models.shape import GPTShape
from helpers.plans.step_messages import Stage, StepPlan, tensor_messages
from helpers.simulate.collective_time import message_seconds
from helpers.simulate.data_parallel import require_positive
from helpers.simulate.topology import Topology


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one forward and backward.

    Attributes:
        gpus: N.
        flops: of the matrix products on all GPUs together, without what is recomputed.
        products: seconds of a GPU's matrix products, also those that are recomputed.
        between: seconds of norms, dropout and residual sums.
        communication: seconds of all messages.
    """

    gpus: int
    flops: float
    products: float
    between: float
    communication: float

    @property
    def computing(self) -> float:
        return self.products + self.between

    @property
    def seconds(self) -> float:
        return self.computing + self.communication

    @property
    def flops_per_second(self) -> float:
        """What each GPU sustains. Divide by that of one GPU: the efficiency of weak scaling."""
        return self.flops / self.gpus / self.seconds

    @property
    def efficiency(self) -> float:
        """Computing over the whole step: 1 without messages."""
        return self.computing / self.seconds


def step(
    config: GPTShape,
    *,
    sequences: int,
    tokens: int,
    topology: Topology,
    flops_per_second: float,
    memory_bytes_per_second: float = math.inf,
    number_bytes: float = 2,
    sequence: bool = False,
    again: bool = False,
    algorithm: str | None = None,
) -> Step:
    """One forward and backward of a GPT whose layers are cut over all GPUs of the topology.

    Args:
        config: its `recompute` and `dropout` count too.
        sequences, tokens: B and T, the same on all GPUs.
        flops_per_second: of one GPU, sustained in matrix products.
        memory_bytes_per_second: of one GPU's memory; infinite: the work between the layers is free.
        number_bytes: e, of an activation: 2 for bf16.
        sequence: sequence parallelism. An all-gather and a reduce-scatter replace an all-reduce.
        again: with `sequence`, the backward gathers the layers' inputs a second time.
        algorithm: of the messages, one of `collective_time.ALGORITHMS`; None: the fastest.

    Raises:
        ValueError: another mixer, experts, or no MLP; the GPUs do not divide the heads, or with
            `sequence` the tokens; a number is not positive; no such algorithm.
    """
    ranks = topology.gpus
    check_sizes(config, ranks, tokens if sequence else ranks)
    require_positive(sequences=sequences, tokens=tokens, number_bytes=number_bytes)
    require_positive(flops_per_second=flops_per_second)
    require_positive(memory_bytes_per_second=memory_bytes_per_second)
    core, linears, head = forward_flops(config, sequences, tokens)
    layers, full = config.layers, config.recompute == "full"
    flops = 3 * (layers * (core + linears) + head)
    repeated = {"none": 0, "selective": layers * core, "full": layers * (core + linears)}
    numbers = sequences * tokens * config.width  # B T D
    forward, backward = moved(config, number_bytes)
    between = layers * numbers * (forward * (2 if full else 1) + backward)
    model = [Stage(blocks=layers)]
    plan = StepPlan(
        sizes={"tp": ranks}, width=config.width, sequences=sequences, tokens=tokens,
        stages=[model], rows=[{}], recompute=config.recompute, number_bytes=number_bytes,
        sequence=sequence, again=again,
    )  # fmt: skip
    sent = [one for one in tensor_messages(plan, model) if one.what == "activations"]
    return Step(
        gpus=ranks,
        flops=flops,
        products=(flops + repeated[config.recompute]) / ranks / flops_per_second,
        between=between / (ranks if sequence else 1) / memory_bytes_per_second,
        communication=message_seconds(sent, topology, algorithm),
    )


def forward_flops(config: GPTShape, sequences: int, tokens: int) -> tuple[float, float, float]:
    """FLOPs of a block's attention core, of its linear layers, and of the head.

    A multiply-add is 2 FLOPs. The core counts as if no score were masked, as the papers count it.
    """
    rows, width = sequences * tokens, config.width
    heads, keys = (n * config.head_width for n in (config.heads, config.key_heads))
    matrices = 3 if config.mlp == "swiglu" else 2
    weights = width * (2 * heads + 2 * keys + matrices * config.inner)
    return 4 * rows * tokens * heads, 2 * rows * weights, 2 * rows * width * config.vocab


def moved(config: GPTShape, number_bytes: float) -> tuple[float, float]:
    """Bytes that a block reads and writes between its layers, for each of the B T D numbers.

    Forward: two norms read and write; twice, dropout and the residual sum together read two
    numbers, write one, and write a mask of one byte. Backward: a norm reads its input and a
    gradient, and adds to the residual's gradient; dropout reads a gradient and the mask, and
    writes.
    """
    mask = 2 if config.dropout else 0
    return 10 * number_bytes + mask, (14 if mask else 10) * number_bytes + mask


def check_sizes(config: GPTShape, ranks: int, tokens: int):
    kinds = {config.mixer_of(layer) for layer in range(config.layers)}
    if kinds != {"attention"}:
        raise ValueError(
            f"the mixers are {', '.join(sorted(kinds))}, but the simulated step knows the times of "
            "attention alone"
        )
    if config.experts is not None:
        raise ValueError("the times of experts are not known: predict a model without them")
    if not config.inner:
        raise ValueError("the times of blocks without an MLP are not known: choose another mlp")
    if config.heads % ranks:
        raise ValueError(f"{config.heads} query heads do not divide over {ranks} GPUs")
    if config.key_heads % ranks and ranks % config.key_heads:
        raise ValueError(f"{config.key_heads} key heads on {ranks} GPUs: one must divide the other")
    if tokens % ranks:
        raise ValueError(f"{tokens} tokens do not divide over {ranks} GPUs")


def weak(models: Mapping[int, GPTShape], *, topology: Topology, **work) -> dict[int, Step]:
    """Give more GPUs a larger model, with the same batch: {GPUs: config} to {GPUs: `Step`}.

    Args:
        topology: of any size; `Topology.of` gives that of each number of GPUs.
        work: as `step` has it.
    """
    return {n: step(config, topology=topology.of(n), **work) for n, config in models.items()}
