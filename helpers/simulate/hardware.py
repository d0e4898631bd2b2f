"""Processors as numbers: what they compute, hold and move at most, as their makers published it.

The roofline (Williams, Waterman and Patterson 2009, "Roofline: An Insightful Visual Performance
Model for Multicore Architectures", section 3): an operation of `intensity` FLOP per byte of memory
traffic runs at min(peak, intensity · bandwidth) FLOP/s at most. Both meet at the ridge.

Peaks are dense: data sheets of NVIDIA also print twice as much, "with sparsity". Links are given
each way: NVIDIA prints the sum of both ways. GB is 1e9 bytes, as printed, GiB is 2**30.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Processor:
    """One chip, or one machine measured as if it were one.

    Attributes:
        name: as people say it.
        peak_flops: type of number -> FLOP/s, dense. A multiply-add is 2 FLOPs. The types are named
            as PyTorch names them ("bfloat16", "float32", …), and "tfloat32".
        memory_bytes: of its large memory (HBM; the RAM of a CPU).
        memory_bytes_per_second: bytes/s between that memory and the chip, reads and writes added.
        link_bytes_per_second_each_way: bytes/s that it can send to its neighbours over all its fast
            links (NVLink, ICI) while it receives as many; half of what is printed for NVLink. None
            where it has no such link.
        network_bytes_per_second_each_way: bytes/s, its share of its host's network cards. None
            where that is not published.
        sources: what a number is -> where it is published.

    Raises:
        ValueError: a number that is not positive and finite, or no peak at all.
    """

    name: str
    peak_flops: Mapping[str, float] = field(hash=False)
    memory_bytes: float
    memory_bytes_per_second: float
    link_bytes_per_second_each_way: float | None = None
    network_bytes_per_second_each_way: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        if not self.peak_flops:
            raise ValueError(f"{self.name}: no peak is given")
        numbers = {f"peak_flops[{dtype!r}]": peak for dtype, peak in self.peak_flops.items()}
        numbers["memory_bytes"] = self.memory_bytes
        numbers["memory_bytes_per_second"] = self.memory_bytes_per_second
        for name in ("link_bytes_per_second_each_way", "network_bytes_per_second_each_way"):
            if getattr(self, name) is not None:
                numbers[name] = getattr(self, name)
        for name, number in numbers.items():
            if not 0 < number < math.inf:
                raise ValueError(f"{self.name}: {name} is to be positive, not {number}")
        # Copies: what the caller does to its own dict later changes no processor.
        object.__setattr__(self, "peak_flops", dict(self.peak_flops))
        object.__setattr__(self, "sources", dict(self.sources))

    def peak(self, dtype: str = "bfloat16") -> float:
        """FLOP/s at most with numbers of this type.

        Raises:
            ValueError: no peak is known for the type.
        """
        if dtype not in self.peak_flops:
            known = ", ".join(self.peak_flops)
            raise ValueError(f"{self.name}: no peak is known for {dtype!r}, only for {known}")
        return self.peak_flops[dtype]

    def ridge(self, dtype: str = "bfloat16") -> float:
        """FLOP per byte at which computing takes as long as moving; below, memory is the limit."""
        return self.peak(dtype) / self.memory_bytes_per_second

    def attainable(self, intensity: float, dtype: str = "bfloat16") -> float:
        """FLOP/s at most for an operation of `intensity` FLOP per byte of memory traffic."""
        return min(self.peak(dtype), intensity * self.memory_bytes_per_second)

    def seconds(self, flops: float, moved: float, dtype: str = "bfloat16") -> float:
        """The least time for `flops` FLOPs and `moved` bytes of memory traffic, both overlapped."""
        return max(flops / self.peak(dtype), moved / self.memory_bytes_per_second)


_A100_SHEET = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_A100_PAPER = (
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/"
    "nvidia-ampere-architecture-whitepaper.pdf"
)
_H100_PAPER = "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"
_H200_SHEET = "https://www.nvidia.com/en-us/data-center/h200/"
_TPU_V4_DOCS = "https://cloud.google.com/tpu/docs/v4"
_TPU_V4_PAPER = "https://arxiv.org/abs/2304.01433"
_TPU_V5P_DOCS = "https://cloud.google.com/tpu/docs/v5p"
_DGX_A100 = "https://developer.nvidia.com/blog/defining-ai-innovation-with-dgx-a100"
_DGX_H100 = (
    "https://docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-"
    "enterprise-ai/latest/core-components.html"
)
_HOPPER = {
    "float64": 66.9e12,  # tensor cores
    "float32": 66.9e12,
    "tfloat32": 494.7e12,
    "bfloat16": 989.4e12,
    "float16": 989.4e12,
    "float8": 1978.9e12,
}

A100 = Processor(
    name="A100",  # SXM, 80 GB
    peak_flops={
        "float64": 19.5e12,  # tensor cores
        "float32": 19.5e12,
        "tfloat32": 156e12,
        "bfloat16": 312e12,
        "float16": 312e12,
    },
    memory_bytes=80e9,
    memory_bytes_per_second=2.039e12,
    link_bytes_per_second_each_way=300e9,  # 12 NVLinks of 25e9
    network_bytes_per_second_each_way=25e9,  # DGX A100: 200 Gbit/s a GPU
    sources={"peak, memory, link": _A100_SHEET, "build": _A100_PAPER, "network": _DGX_A100},
)
H100 = Processor(
    name="H100",  # SXM5, 80 GB
    peak_flops=_HOPPER,
    memory_bytes=80e9,
    memory_bytes_per_second=3.35e12,
    link_bytes_per_second_each_way=450e9,  # 18 NVLinks of 25e9
    network_bytes_per_second_each_way=50e9,  # DGX H100: 400 Gbit/s a GPU
    sources={
        "peak": _H100_PAPER,
        "memory, link": "https://www.nvidia.com/en-us/data-center/h100/",
        "network": _DGX_H100,
    },
)
H200 = Processor(
    name="H200",  # SXM, 141 GB: an H100 with more and faster memory
    peak_flops=_HOPPER,
    memory_bytes=141e9,
    memory_bytes_per_second=4.8e12,
    link_bytes_per_second_each_way=450e9,
    network_bytes_per_second_each_way=50e9,
    sources={"peak": _H100_PAPER, "peak, memory, link": _H200_SHEET, "network": _DGX_H100},
)
TPU_V4 = Processor(
    name="TPU v4",
    peak_flops={"bfloat16": 275e12},
    memory_bytes=32 * GIB,
    memory_bytes_per_second=1.2e12,
    link_bytes_per_second_each_way=300e9,  # 6 links of 50e9, to the neighbours in a 3-D torus
    sources={"peak, memory": _TPU_V4_DOCS, "link": _TPU_V4_PAPER},
)
TPU_V5P = Processor(
    name="TPU v5p",
    peak_flops={"bfloat16": 459e12},
    memory_bytes=95e9,
    memory_bytes_per_second=2.765e12,
    link_bytes_per_second_each_way=600e9,  # printed as 4800 Gbit/s, or as 1200 GB/s both ways
    network_bytes_per_second_each_way=6.25e9,  # 50 Gbit/s a chip
    sources={"peak, memory, link, network": _TPU_V5P_DOCS},
)
PROCESSORS = (A100, H100, H200, TPU_V4, TPU_V5P)
