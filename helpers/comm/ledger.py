"""The byte ledger: what each collective and message of a block carries, by formula and by kernel.

    with ledger() as log:
        loss.backward()
    log.payload, log.wire, log.kernel

Three columns that are never mixed:

- payload: bytes of the buffer that the call is about (the S of `cost.sent`);
- wire: bytes that this rank sends for it, by the formula of the backend's algorithm;
- kernel: bytes that this process did send over gloo's TCP connections, counted by Linux, for the
  block as a whole. It holds gloo's headers too: 48 bytes a message, in both directions.

Below Python every collective is an operator, `c10d::allreduce_` or `_c10d_functional::all_reduce`,
and a TorchDispatchMode sees it: ours, and those of DDP (its C++ reducer too), FSDP2, DTensor,
pipelining and ZeroRedundancyOptimizer. DTensor's own operator (`_dtensor::`) and symmetric memory
(`symm_mem::`, kernels that read other GPUs' memory) are entered without a formula. Not seen, but in
the kernel's column: calls made in another thread, and what a library sends past torch.distributed.
In neither: what goes through shared memory, unless it is entered by `note`; the store; connections
that were closed meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.comm.operators import NAMESPACES, OPERATORS, SILENT
from helpers.comm.volume import CALLS, sent
from helpers.measure.sockets import SentBytes
from helpers.plots.table import table


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One call on this rank.

    Attributes:
        call: its name, as in `cost.CALLS`.
        group: the group's name; `ranks` its size, `rank` this rank's place in it.
        axes: the mesh's axes that the group lies along, "tp"; "" for another group.
        payload, wire: bytes, see above; `wire` is None where no formula is known. A message is an
            entry on both sides, a "send" and a "recv" with its payload; only the first has a wire.
    """

    call: str
    group: str
    ranks: int
    rank: int
    payload: int
    wire: float | None
    axes: str = ""


@dataclass
class Ledger:
    """What `ledger` wrote, on this rank.

    Attributes:
        entries: every call, in order.
        kernel: bytes sent over gloo's connections during the block; None where the kernel does not
            tell, or before the block's end.
    """

    entries: list[Entry] = field(default_factory=list)
    kernel: int | None = None

    @property
    def payload(self) -> int:
        """Of all calls, in bytes."""
        return sum(entry.payload for entry in self.entries)

    @property
    def wire(self) -> float:
        """Of all calls with a known formula, in bytes."""
        return sum(entry.wire or 0 for entry in self.entries)

    def of(self, *calls: str) -> "Ledger":
        """The entries of these calls alone; the kernel cannot tell them apart."""
        return Ledger([entry for entry in self.entries if entry.call in calls])

    def rows(self) -> list[dict[str, Any]]:
        """Calls of one kind along the same axes, in a group of one size, added up, in the order of
        their first. With tp = 2 and dp = 2 they are two rows."""
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
        """`rows` as a DataFrame; the axes where there are any."""
        import pandas as pd

        columns = ["call", *self._axes(), "ranks", "calls", "payload", "wire"]
        return pd.DataFrame(self.rows(), columns=columns)

    def _axes(self) -> list[str]:
        return ["axes"] if any(entry.axes for entry in self.entries) else []

    def _table(self) -> list[list[str]]:
        axes = self._axes()
        head = ["call", *axes, "ranks", "calls", "payload", "wire by formula", "sent by the kernel"]
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
        """A bar for each call: what this rank sends by formula. Returns a Picture."""
        from helpers.measure.draw import bars

        values: dict[str, float] = {}
        for row in self.rows():
            values[row["call"]] = values.get(row["call"], 0) + (row["wire"] or 0)
        return bars("sent by this rank, by formula", values, "bytes")


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


@contextmanager
def ledger() -> Iterator[Ledger]:
    """Count what this rank's thread communicates in the block.

    Calls that are still under way at the block's end are counted; their bytes in the kernel's
    column only as far as they were sent. The mode costs some microseconds for each operator: time
    without it.
    """
    log = Ledger()
    count = SentBytes(without_ports=store_ports())
    _open.append(log)
    try:
        with Recorder(log):
            yield log
    finally:
        log.kernel = count.read()
        _open[:] = [other for other in _open if other is not log]


_open: list[Ledger] = []  # of this process, outer before inner


def note(call: str, *, group: str, ranks: int, rank: int, payload: int, wire: float | None = 0.0):
    """Add an entry to the open ledgers, for what moves bytes past torch.distributed."""
    if _open:
        entry = Entry(call=call, group=group, ranks=ranks, rank=rank, payload=payload, wire=wire)
        for log in _open:
            log.entries.append(entry)


def store_ports() -> list[int]:
    """The port of the default group's TCPStore, if it has one."""
    if not dist.is_initialized():
        return []
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return [store.port] if isinstance(store, dist.TCPStore) else []


class Recorder(TorchDispatchMode):
    """Sees every operator below autograd, and writes down those that communicate."""

    def __init__(self, log: Ledger):
        super().__init__()
        self._log = log

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else the first use in a fresh rank imports all of torch._dynamo, a second

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any("__tensor_flatten__" in dir(kind) for kind in types):
            return NotImplemented  # a DTensor finds out what to communicate; that comes back here
        out = func(*args, **(kwargs or {}))
        if getattr(func, "namespace", "") in NAMESPACES:
            self._log.entries.extend(entries(func, args, kwargs or {}))
        return out


def entries(func, args, kwargs) -> Iterator[Entry]:
    """What one operator of torch.distributed communicates, as entries."""
    operator = func._schema.name
    if operator.endswith(SILENT):
        return
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    if operator.endswith("::batch_p2p_ops"):
        for kind, tensor in zip(given["op_list"], given["tensors"], strict=True):
            yield entry("recv" if "recv" in kind else "send", [tensor], given)
        return
    call, held = OPERATORS.get(operator, (operator, None))
    if held is None:  # a later PyTorch's: shown, with what it was given
        yield entry(call, [v for v in given.values() if isinstance(v, torch.Tensor)], given)
        return
    name, _, part = held.partition(" ")
    yield entry(call, given.get(name, []), given, part=bool(part))


def entry(call: str, tensors, given, *, part: bool = False) -> Entry:
    """One call on `tensors`; with `part` they are one rank's part of the payload."""
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    group = group_of(given)
    ranks, rank = group.size(), group.rank()
    sizes = [tensor.nbytes for tensor in tensors]
    payload = sum(sizes) * (ranks if part else 1)
    backend = backend_of(group, tensors)
    wire = None
    if call in CALLS and backend is not None:
        root = given.get("root_rank", given.get("src", 0))
        wire = sent(call, payload, ranks, rank=rank, root=root, backend=backend)
    if call == "all_to_all" and wire is not None:
        wire = float(payload - own_part(tensors, given.get("input_split_sizes"), ranks, rank))
    about = {"group": group.group_name, "ranks": ranks, "rank": rank, "axes": axes_of(group)}
    return Entry(call=call, payload=payload, wire=wire, **about)


def own_part(tensors, splits, ranks: int, rank: int) -> float:
    """Bytes of an all-to-all's input that stay on this rank."""
    if len(tensors) > 1:
        return tensors[rank].nbytes
    if splits:
        rows = sum(splits)
        return tensors[0].nbytes * splits[rank] / rows if rows else 0
    return tensors[0].nbytes / ranks


def axes_of(group: dist.ProcessGroup) -> str:
    """The mesh's axes that a group lies along, as `make_mesh` and PyTorch describe it: "tp"."""
    kind, _, axes = (getattr(group, "group_desc", "") or "").partition("_")
    return axes if kind == "mesh" else ""


def group_of(given) -> dist.ProcessGroup:
    group = given.get("process_group", given.get("group_name"))
    if group is None:  # a message of symmetric memory to one peer says no group
        return dist.group.WORLD
    if isinstance(group, str):
        return dist.distributed_c10d._resolve_process_group(group)
    return group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)


def backend_of(group, tensors) -> str | None:
    """Whose algorithms move these tensors: "gloo", "nccl", or None where they are not known."""
    device = tensors[0].device if tensors else torch.device("cpu")
    config = dist.get_backend_config(group)  # "cpu:gloo,cuda:nccl"
    backends = dict(pair.split(":") for pair in config.split(",") if ":" in pair)
    name = backends.get(device.type, "")
    return name if name in ("gloo", "nccl") else None
