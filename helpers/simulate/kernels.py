"""Seconds of a Transformer's parts on one GPU: products by their shape, the rest by memory.

A matrix product of m x k and k x n numbers is cut into tiles of m x n, and each multiprocessor
computes one tile at a time. The last wave of tiles may leave multiprocessors idle, and a small k
leaves each tile's start and end unpaid. The other kernels read and write memory. The host launches
every kernel; where the GPU is faster than the host, the host decides.

R  tokens of a micro-batch on this GPU     D  width     F  inner width of the MLP     V  vocabulary
H  query heads      d  width of a head     N  GPUs that share each layer (tensor parallelism)

Sources: Williams et al. 2009 (the roofline, see `hardware`); NVIDIA, "Matrix Multiplication
Background User's Guide" (tiles, tile and wave quantization). The softmax that Megatron-LM fuses:
megatron/model/fused_softmax.py, `custom_kernel_constraint`.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from helpers.models.shape import GPTShape
from helpers.simulate.hardware import A100, Processor
from helpers.simulate.tensor_parallel import moved

TILES = (  # rows, columns, relative speed
    (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.93), (128, 64, 0.75), (64, 128, 0.75),
    (64, 64, 0.5),
)  # fmt: skip
FUSED_TOKENS = 2048  # Megatron-LM's fused softmax has rows of at most as many scores
LAUNCHES = {"forward": 20, "backward": 20, "head": 14, "unfused": 6}  # kernels of a block
NUMBER = 2  # bytes of an fp16 or bf16 number


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What GPUs, hosts and links reach of what their makers promise.

    The defaults are fitted to 793 published steps of Megatron-DeepSpeed on A100s: see `predict`.

    Attributes:
        processor: its peak with float16, its memory's bandwidth, its multiprocessors.
        multiprocessors: of the processor.
        matrix: share of the peak that large matrix products reach.
        depth: k at which a tile's start and end take as long as its products.
        memory: share of the memory's bandwidth that other kernels reach.
        kernel: seconds of the GPU for each kernel, whatever its size.
        launch: seconds of the host for each kernel.
        waiting: share by which each doubling of N slows the hosts: all wait for the slowest.
        network: share of the links' bandwidth that collectives between nodes reach.
        call: seconds of a collective call, beside the links' own latency.
        update: bytes of memory traffic that the optimizer needs for each parameter.
        step: seconds of each step that nothing else explains: the norm, the loss scale, the logs.
        logit: bytes of memory traffic for each logit, forward and backward, in the loss.
    """

    processor: Processor = A100
    multiprocessors: int = 108
    matrix: float = 0.72
    depth: float = 120.0
    memory: float = 0.86
    kernel: float = 5.5e-6
    launch: float = 52e-6
    waiting: float = 0.07
    network: float = 0.5
    call: float = 20e-6
    update: float = 33.0
    step: float = 2.8e-3
    logit: float = 75.0

    def times(self, *, compute: float = 1, host: float = 1, network: float = 1) -> "Rates":
        """The same rates, with a GPU, a host and links that take this many times as long."""
        return replace(
            self,
            matrix=self.matrix / compute,
            memory=self.memory / compute,
            kernel=self.kernel * compute,
            launch=self.launch * host,
            step=self.step * host,
            network=self.network / network,
            call=self.call * network,
        )

    def moving(self, moved: float, kernels: int = 1) -> float:
        """Seconds of kernels that read and write this many bytes together."""
        rate = self.processor.memory_bytes_per_second * self.memory
        return moved / rate + kernels * self.kernel

    def launching(self, kernels: int, ranks: int) -> float:
        """Seconds of the slowest of N hosts."""
        return kernels * self.launch * (1 + self.waiting * (ranks - 1).bit_length())

    def product(self, m: float, n: float, k: float, batch: float = 1) -> float:
        """Seconds of `batch` products of m x k and k x n numbers."""
        peak = self.processor.peak("float16") * self.matrix / self.multiprocessors
        numbers = min(  # of all waves, whether they are needed or not
            quantised(-(-m // rows) * -(-n // columns) * batch / self.multiprocessors)
            * rows * columns / speed
            for rows, columns, speed in TILES
        )  # fmt: skip
        computing = numbers * 2 * (k + self.depth) / peak
        moved = NUMBER * batch * (m * k + k * n + m * n)
        return max(computing, self.moving(moved, 0)) + self.kernel


def quantised(waves: float) -> float:
    """Waves of tiles, counted as whole; one in five multiprocessors finds other work meanwhile."""
    return 0.8 * -(-waves // 1) + 0.2 * max(waves, 1.0)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Seconds of a part of the model for one micro-batch: GPU, and host, by direction.

    Attributes:
        forward, backward: of the GPU's kernels.
        core: of these, what attention's core takes in a forward.
        weights: of these, gradients of the column-parallel weights, which can hide messages.
        launching, launching_back: of the host.
    """

    forward: float
    backward: float
    core: float = 0.0
    weights: float = 0.0
    launching: float = 0.0
    launching_back: float = 0.0


@lru_cache  # a planner asks for few different blocks, thousands of times
def block(
    config: GPTShape,
    rates: Rates,
    sequences: int,
    tokens: int,
    *,
    ranks: int = 1,
    parts: int = 1,
    sequence: bool = False,
) -> Part:
    """One block with attention, on one GPU.

    Args:
        sequences, tokens: of a micro-batch; `tokens` of the whole sequence.
        ranks: N, which divides heads and F.
        parts: GPUs that share each sequence (context parallelism).
        sequence: sequence parallelism: the work between the layers is cut N times too.
    """
    local = tokens / parts
    rows, width, inner = sequences * local, config.width, config.inner
    heads, keys = (n * config.head_width for n in (config.heads, config.key_heads))
    gated = 2 if config.mlp == "swiglu" else 1
    linears = (
        (width, (heads + 2 * keys) / ranks),
        (heads / ranks, width),
        (width, gated * inner / ranks),
        (inner / ranks, width),
    )
    product, moving = rates.product, rates.moving
    forward = sum(product(rows, n, k) for k, n in linears)
    backward = sum(product(rows, k, n) + product(k, n, rows) for k, n in linears)

    batch, head = sequences * config.heads / ranks, config.head_width
    scores, values = product(local, tokens, head, batch), product(local, head, tokens, batch)
    core, core_back, more = scores + values, 2 * (scores + values), 0
    if config.attention == "explicit":
        mask, plain = bool(config.dropout), batch % 4 != 0 or tokens > FUSED_TOKENS  # not fused
        once = NUMBER * (1.5 + 2 * mask) + mask + 32 * plain  # the masked half is not read
        core += moving(batch * local * tokens * once, 2 + mask)
        core_back += moving(batch * local * tokens * (once + NUMBER / 2), 2 + mask)
        more = LAUNCHES["unfused"] * plain

    between = [rows * width * each / (ranks if sequence else 1) for each in moved(config, NUMBER)]
    wide = NUMBER * rows * (heads + 2 * keys + gated * inner) / ranks
    return Part(
        forward=forward + core + moving(between[0] + 2 * wide, 8),
        backward=backward + core_back + moving(between[1] + 3 * wide, 12),
        core=core,
        weights=sum(product(k, n, rows) for k, n in linears[::2]),
        launching=rates.launching(LAUNCHES["forward"] + more, ranks),
        launching_back=rates.launching(LAUNCHES["backward"] + more, ranks),
    )


def head(config: GPTShape, rates: Rates, rows: float, ranks: int = 1) -> Part:
    """The last norm, the logits and their loss for R = `rows` tokens; V is cut over the ranks."""
    n, width, product = config.vocab / ranks, config.width, rates.product
    loss = rates.moving(rows * n * rates.logit, 10)
    return Part(
        forward=product(rows, n, width) + loss / 3,
        backward=product(rows, width, n) + product(width, n, rows) + 2 * loss / 3,
        launching=rates.launching(LAUNCHES["head"], ranks),
    )


def embedding(config: GPTShape, rates: Rates, rows: float) -> Part:
    """Look up R tokens, add positions, drop; and add the gradients up again."""
    size = NUMBER * rows * config.width
    return Part(forward=rates.moving(6 * size, 4), backward=rates.moving(9 * size, 4))


def numbers(config: GPTShape) -> dict[str, int]:
    """Parameters of one block, of the embedding with positions, of the head, of the last norm.

    The same as `models.counts.parameters`, which builds the model, without PyTorch.
    """
    width, inner, gated = config.width, config.inner, config.mlp == "swiglu"
    heads, keys = (n * config.head_width for n in (config.heads, config.key_heads))
    norm, mlp = width * (1 if config.norm == "rms" or not config.bias else 2), inner > 0
    block = 2 * width * (heads + keys) + (2 + gated) * width * inner + (1 + mlp) * norm
    if config.bias:
        block += width + heads + 2 * keys + (1 + gated) * inner + mlp * width
    places = config.context * width if config.positions == "learned" else 0
    table = config.vocab * width
    return {"block": block, "embedding": table + places, "head": table, "norm": norm}


def total(config: GPTShape) -> int:
    """All parameters of the model."""
    each = numbers(config)
    ends = each["embedding"] + each["norm"] + (0 if config.tied else each["head"])
    return config.layers * each["block"] + ends
