"""The byte ledger: count the bytes of every collective and message of a block of code.

    with ledger() as log:
        loss.backward()
    log.payload, log.wire, log.kernel

It has three columns, which are never mixed:

- payload: bytes of the call's buffer (the S of `cost.sent`);
- wire: bytes that this rank sends for the call, by the formula of the backend's algorithm;
- kernel: bytes that this process sent over gloo's TCP connections, counted by Linux, for the whole
  block. These include gloo's headers: 48 bytes per message, in both directions.

Below Python every collective is an operator, such as `c10d::allreduce_` or
`_c10d_functional::all_reduce`, and a TorchDispatchMode sees operators. So the ledger sees our calls
and those of DDP (its C++ reducer too), FSDP2, DTensor, pipelining and ZeroRedundancyOptimizer. The
operators of DTensor (`_dtensor::`) and of symmetric memory (`symm_mem::`, kernels that read other
GPUs' memory) are entered without a formula.

Only the kernel's column includes calls in another thread, and bytes that a library sends without
torch.distributed. No column includes shared memory without a `note`, the store, or connections that
were closed before the end of the block.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.comm.operators import NAMESPACES, OPERATORS, SILENT
from helpers.comm.volume import CALLS, sent
from helpers.measure.sockets import SentBytes
from helpers.plots.page import table


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One call on this rank.

    Attributes:
        call: its name, as in `cost.CALLS`.
        group: the group's name.
        ranks, rank: the group's size, and this rank's place in the group.
        axes: the axes of the mesh along which the group runs, such as "tp"; "" for any other group.
        payload, wire: bytes, as above; `wire` is None if no formula is known. A message has an
            entry on both sides, "send" and "recv", each with its payload; only the "send" has a
            wire.
        to: bytes of the wire by receiver, a rank of the world. Rings send to the next rank of the
            group. Empty if the receivers are not known.
        at: when the call began: seconds since the ledger was opened.
    """

    call: str
    group: str
    ranks: int
    rank: int
    payload: int
    wire: float | None
    axes: str = ""
    to: Mapping[int, float] = field(default_factory=dict, compare=False, repr=False)
    at: float = field(default=0.0, compare=False, repr=False)


@dataclass
class Ledger:
    """The entries that `ledger` wrote on this rank.

    Attributes:
        entries: every call, in order.
        kernel: bytes sent over gloo's connections during the block; None before the end of the
            block, and where the system does not count them.
        began: when it was opened, in seconds by `time.perf_counter`.
    """

    entries: list[Entry] = field(default_factory=list)
    kernel: int | None = None
    began: float = field(default_factory=time.perf_counter, compare=False, repr=False)

    @property
    def payload(self) -> int:
        """The payload of all calls, in bytes."""
        return sum(entry.payload for entry in self.entries)

    @property
    def wire(self) -> float:
        """The wire of all calls with a known formula, in bytes."""
        return sum(entry.wire or 0 for entry in self.entries)

    def of(self, *calls: str) -> "Ledger":
        """Return a ledger of these calls only; the kernel's count cannot be divided."""
        return Ledger([e for e in self.entries if e.call in calls], began=self.began)

    def rows(self) -> list[dict[str, Any]]:
        """Add up the calls of one kind, along the same axes, in groups of one size.

        The rows are in the order of their first calls. With tp = 2 and dp = 2 the two axes have two
        rows.
        """
        rows: dict[tuple, dict[str, Any]] = {}
        for e in self.entries:
            row = rows.setdefault(
                (e.call, e.axes, e.ranks),
                {"call": e.call, "axes": e.axes, "ranks": e.ranks}
                | {"calls": 0, "payload": 0, "wire": 0.0},
            )
            row["calls"] += 1
            row["payload"] += e.payload
            row["wire"] = None if None in (e.wire, row["wire"]) else row["wire"] + e.wire
        return list(rows.values())

    def frame(self):
        """Return `rows` as a DataFrame; the column of axes only if a call has axes."""
        import pandas as pd

        columns = ["call", *self._axes(), "ranks", "calls", "payload", "wire"]
        return pd.DataFrame(self.rows(), columns=columns)

    def _axes(self) -> list[str]:
        return ["axes"] if any(entry.axes for entry in self.entries) else []

    def _table(self) -> list[list[str]]:
        axes = self._axes()
        head = ["call", *axes, "ranks", "calls", "payload", "wire (formula)", "kernel (counted)"]
        rows = [
            [r["call"], *(r[name] for name in axes), str(r["ranks"]), str(r["calls"])]
            + [f"{r['payload']:,}", number(r["wire"]), ""]
            for r in self.rows()
        ]
        total = ["all", *("" for _ in axes), "", str(len(self.entries)), f"{self.payload:,}"]
        return [head, *rows, [*total, number(self.wire), number(self.kernel)]]

    def __repr__(self):
        rows = self._table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{c:>{w}}" for c, w in zip(r, widths, strict=True)) for r in rows]
        return "\n".join(["bytes of this rank", *(line.rstrip() for line in lines)])

    def _repr_html_(self):
        head, *rows = self._table()
        return table(rows, head=head)

    def plot(self):
        """Plot a bar for each call: the bytes that this rank sends by formula. Returns Picture."""
        from helpers.measure.draw import bars

        values: dict[str, float] = {}
        for row in self.rows():
            values[row["call"]] = values.get(row["call"], 0) + (row["wire"] or 0)
        return bars("bytes that this rank sends, by formula", values, "bytes")


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


Watch = Callable[[Entry, Sequence[torch.Tensor]], None]


@contextmanager
def ledger(watch: Watch | None = None) -> Iterator[Ledger]:
    """Count the bytes that this thread communicates in the block.

    A call that is still running at the end of the block is counted. The kernel's column has only
    the bytes that were sent by then. Each operator costs some microseconds more: do not time such a
    block.

    Args:
        watch: called for each entry with the tensors of its payload, after the call has started. A
            result may not have arrived in them yet.
    """
    log = Ledger()
    count = SentBytes(without_ports=store_ports())
    _open.append(log)
    try:
        with Recorder(log, watch):
            yield log
    finally:
        log.kernel = count.read()
        _open[:] = [other for other in _open if other is not log]


RINGS = ("all_reduce", "all_gather", "reduce_scatter")
_open: list[Ledger] = []  # the open ledgers of this process, outer before inner


def note(call: str, *, group: str, ranks: int, rank: int, payload: int, wire: float | None = 0.0):
    """Add an entry to the open ledgers, for bytes that move without torch.distributed."""
    for log in _open:
        about = {"group": group, "ranks": ranks, "rank": rank, "payload": payload, "wire": wire}
        log.entries.append(Entry(call=call, at=time.perf_counter() - log.began, **about))


def store_ports() -> list[int]:
    """List the port of the default group's TCPStore, if it has a TCPStore."""
    if not dist.is_initialized():
        return []
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return [store.port] if isinstance(store, dist.TCPStore) else []


class Recorder(TorchDispatchMode):
    """Sees every operator below autograd, and records those that communicate."""

    def __init__(self, log: Ledger, watch: Watch | None = None):
        super().__init__()
        self._log, self._watch = log, watch

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else the first use in a fresh rank imports torch._dynamo: one second

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # the DTensor decides what to communicate, and calls back here
        at = time.perf_counter() - self._log.began
        out = func(*args, **(kwargs or {}))
        if getattr(func, "namespace", "") in NAMESPACES:
            for written, tensors in calls(func, args, kwargs or {}):
                self._log.entries.append(replace(written, at=at))
                if self._watch is not None:
                    self._watch(written, tensors)
        return out


def entries(func, args, kwargs) -> Iterator[Entry]:
    """Yield the entries of one operator of torch.distributed."""
    return (written for written, _ in calls(func, args, kwargs))


def calls(func, args, kwargs) -> Iterator[tuple[Entry, list[torch.Tensor]]]:
    """Yield the entries of one operator, each with the tensors of its payload."""
    operator = func._schema.name
    if operator.endswith(SILENT):
        return
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    if operator.endswith("::batch_p2p_ops"):
        for kind, tensor in zip(given["op_list"], given["tensors"], strict=True):
            yield entry("recv" if "recv" in kind else "send", [tensor], given), [tensor]
        return
    call, held = OPERATORS.get(operator, (operator, None))
    if held is None:  # unknown, from a later PyTorch: enter all its tensors
        tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
        yield entry(call, tensors, given), tensors
        return
    name, _, part = held.partition(" ")
    tensors = given.get(name, [])
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    yield entry(call, tensors, given, part=bool(part)), tensors


def entry(call: str, tensors, given, *, part: bool = False) -> Entry:
    """Make the entry of a call on `tensors`; with `part` they are one rank's part of the whole."""
    group = group_of(given)
    ranks, rank = group.size(), group.rank()
    sizes = [tensor.nbytes for tensor in tensors]
    payload = sum(sizes) * (ranks if part else 1)
    backend = backend_of(group, tensors)
    wire = None
    if call in CALLS and backend is not None:
        root = given.get("root_rank", given.get("src", 0))
        wire = sent(call, payload, ranks, rank=rank, root=root, backend=backend)
    to = {}
    if call == "all_to_all" and wire is not None:
        to = dict(enumerate(for_each(tensors, given.get("input_split_sizes"), ranks)))
        wire = float(payload - to.pop(rank))
    elif call in RINGS and wire:
        to = {(rank + 1) % ranks: wire}
    elif call == "send" and "dst" in given:
        to = {given["dst"]: float(payload)}
    world = dist.get_process_group_ranks(group) if to else ()
    about = {"group": group.group_name, "ranks": ranks, "rank": rank, "axes": axes_of(group)}
    about["to"] = {world[member]: size for member, size in to.items()}
    return Entry(call=call, payload=payload, wire=wire, **about)


def for_each(tensors, splits, ranks: int) -> list[float]:
    """Return the bytes of an all-to-all's input for each rank."""
    if len(tensors) > 1:
        return [tensor.nbytes for tensor in tensors]
    if splits:
        rows = sum(splits)
        return [tensors[0].nbytes * split / rows if rows else 0 for split in splits]
    return [tensors[0].nbytes / ranks] * ranks


def axes_of(group: dist.ProcessGroup) -> str:
    """Return the mesh axes of a group from its description by `make_mesh` or PyTorch: "tp"."""
    kind, _, axes = (getattr(group, "group_desc", "") or "").partition("_")
    return axes if kind == "mesh" else ""


def group_of(given) -> dist.ProcessGroup:
    group = given.get("process_group", given.get("group_name"))
    if group is None:  # a message of symmetric memory to one peer names no group
        return dist.group.WORLD
    if isinstance(group, str):
        return dist.distributed_c10d._resolve_process_group(group)
    return group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)


def backend_of(group, tensors) -> str | None:
    """Return the backend that moves these tensors: "gloo", "nccl", or None if unknown."""
    device = tensors[0].device if tensors else torch.device("cpu")
    config = dist.get_backend_config(group)  # "cpu:gloo,cuda:nccl"
    backends = dict(pair.split(":") for pair in config.split(",") if ":" in pair)
    name = backends.get(device.type, "")
    return name if name in ("gloo", "nccl") else None
