"""Random cases for the collectives, and the right answers, from one process with all numbers."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from helpers.comm.transport import reduce_scatter_single

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
NO_ARITHMETIC = (torch.uint16, torch.float8_e4m3fn)  # PyTorch can only copy them
COPIES = ("tree_broadcast", "ring_all_gather", "pairwise_all_to_all")
ALL_REDUCES = ("ring_all_reduce", "recursive_doubling_all_reduce")
REDUCTIONS = ("ring_reduce_scatter", *ALL_REDUCES)
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
COMBINE = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


@dataclass(frozen=True)
class Case:
    """One collective on random numbers.

    An all-to-all draws its sizes; the buffers of the other collectives have `numel` numbers in all.
    """

    what: str
    numel: int
    dtype: torch.dtype
    ranks: tuple[int, ...]  # the ranks that take part
    op: str = "SUM"
    strided: bool = False  # every second number of a longer buffer
    seed: int = 0

    @property
    def sizes(self) -> list[int]:
        """The sizes of the chunks, computed in another way than `split`."""
        n = len(self.ranks)
        return [len(range(r, self.numel, n)) for r in range(n)]

    @property
    def table(self) -> list[list[int]]:
        """How many numbers rank s has for rank d, in an all-to-all; often none."""
        drawn, n = torch.Generator().manual_seed(self.seed), len(self.ranks)
        return torch.randint(0, self.numel // n + 2, (n, n), generator=drawn).tolist()

    @property
    def source(self) -> int:
        return self.ranks[self.seed % len(self.ranks)]

    def numbers(self, rank: int, numel: int | None = None, part: int = 0) -> torch.Tensor:
        """Return the numbers of `rank`; the same in any process."""
        shape = (self.numel if numel is None else numel,)
        drawn = torch.Generator().manual_seed(1000 * self.seed + 10 * rank + part)
        if self.dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=drawn).bool()
        if not self.rounded and self.dtype != torch.float8_e4m3fn:
            whole = torch.randint(-(2**40), 2**40, shape, generator=drawn)
            return whole.to(self.dtype)  # small formats keep the last bits: their full range
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        return torch.randn(shape, dtype=wide, generator=drawn).to(self.dtype)

    @property
    def rounded(self) -> bool:
        return self.dtype in FLOATS + COMPLEX


@st.composite
def cases(draw, world: int, calls=COPIES + REDUCTIONS, most: int = 300):
    what = draw(st.sampled_from(calls))
    dtypes = FLOATS + COMPLEX + WHOLE + (NO_ARITHMETIC if what in COPIES else ())
    dtype = draw(st.sampled_from(dtypes))
    ops = OPS[:2] if dtype.is_complex else OPS[:4] if dtype.is_floating_point else OPS
    some = st.sets(st.integers(0, world - 1), min_size=1).map(sorted).map(tuple)
    return Case(
        what=what,
        numel=draw(st.integers(0, 2 * world) | st.integers(0, most)),
        dtype=dtype,
        ranks=draw(st.just(tuple(range(world))) | some),
        op=draw(st.sampled_from(ops)),
        strided=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


def one_process(case: Case, rank: int) -> torch.Tensor:
    """Return the right result on `rank`. Rounded formats are reduced in double precision."""
    place, sizes = case.ranks.index(rank), case.sizes
    match case.what:
        case "tree_broadcast":
            return case.numbers(case.source)
        case "ring_all_gather":
            parts = zip(case.ranks, sizes, strict=True)
            return torch.cat([case.numbers(r, size, part=1) for r, size in parts])
        case "pairwise_all_to_all":
            sent = [case.table[s][place] for s in range(len(case.ranks))]
            parts = zip(case.ranks, sent, strict=True)
            return torch.cat([case.numbers(r, size, part=place) for r, size in parts])
    result, *others = (widened(case.numbers(r)) for r in case.ranks)
    for other in others:
        result = COMBINE[case.op](result, other)
    return result.split(sizes)[place] if case.what == "ring_reduce_scatter" else result


def widened(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def tolerance(case: Case, rank: int) -> torch.Tensor:
    """Return how far a result in the case's precision may be from the exact result.

    It is 0 for copies, integers, MIN and MAX. For other operations, N-1 steps in any order each
    round the partial result: the error is at most eps times the sum (or the product) of the
    absolute values. A complex product is four products and two sums: 4 eps. For tiny numbers the
    smallest step of the format counts.
    """
    if case.what in COPIES or case.op not in ("SUM", "PRODUCT") or not case.rounded:
        return torch.zeros(())
    every = torch.stack([widened(case.numbers(r)).abs() for r in case.ranks])  # (N, numel)
    info, n = torch.finfo(case.dtype), len(case.ranks)
    size = every.sum(0) if case.op == "SUM" else every.clamp(min=1).prod(0)
    bound = 1.01 * 4 * (n - 1) * size * (info.eps + info.smallest_normal * info.eps)
    if case.what == "ring_reduce_scatter":
        return bound.split(case.sizes)[case.ranks.index(rank)]
    return bound


def pytorchs(case: Case, rank: int, group) -> torch.Tensor | None:
    """Return the result of PyTorch's own collective; None where gloo does not support the case."""
    if case.dtype in (torch.int16, *NO_ARITHMETIC):
        return None
    if case.what in REDUCTIONS:
        if case.dtype == torch.bool and case.op == "SUM":
            return None  # gloo adds bools: the results are 2 or 3
        if case.dtype.is_complex and case.op == "PRODUCT":
            return None
    place, sizes = case.ranks.index(rank), case.sizes
    op, given = getattr(ReduceOp, case.op), case.numbers(rank)
    match case.what:
        case "tree_broadcast":
            dist.broadcast(given, case.source, group)
            return given
        case "ring_all_gather":  # it needs equal parts: pad them
            own = torch.zeros(max(sizes), dtype=case.dtype)
            own[: sizes[place]] = case.numbers(rank, sizes[place], part=1)
            parts = [torch.empty_like(own) for _ in sizes]
            dist.all_gather(parts, own, group)
            return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        case "pairwise_all_to_all":
            sent, received = case.table[place], [row[place] for row in case.table]
            given = torch.cat([case.numbers(rank, size, part=d) for d, size in enumerate(sent)])
            result = torch.empty(sum(received), dtype=case.dtype)
            dist.all_to_all_single(result, given, received, sent, group)
            return result
        case "ring_reduce_scatter" if case.numel and len(set(sizes)) == 1:
            result = torch.empty(sizes[place], dtype=case.dtype)
            reduce_scatter_single(result, given, op, group)
            return result
    dist.all_reduce(given, op, group)
    return given.split(sizes)[place] if case.what == "ring_reduce_scatter" else given


def wrong(case: Case, rank: int, group, result: torch.Tensor, read) -> list[str]:
    """What is wrong with this rank's result, beside one process's and PyTorch's.

    Args:
        read: (what the call has only read, its numbers before the call).
    """
    right, allowed = one_process(case, rank), tolerance(case, rank)
    found = []
    if result.dtype != case.dtype or far(result, right, allowed):
        found.append(f"{case}: {result} for {right}")
    if any(far(after, before) for after, before in read):
        found.append(f"{case}: changed an input")
    theirs = pytorchs(case, rank, group)
    if theirs is not None and far(result, theirs, 2 * allowed):  # both results are rounded
        found.append(f"{case}: {result}, PyTorch has {theirs}")
    return found


def far(a: torch.Tensor, b: torch.Tensor, allowed=0.0) -> bool:
    if a.shape != b.shape:
        return True
    if not torch.as_tensor(allowed).any():
        return bits_of(a.to(b.dtype)) != bits_of(b)
    wide = torch.promote_types(b.dtype, torch.float64)
    return not bool(((a.to(wide) - b.to(wide)).abs() <= allowed).all())


def bits_of(tensor: torch.Tensor) -> bytes:
    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()
