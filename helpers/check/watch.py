"""Watch a student's step: when gradients are ready, which messages start, when a rank waits."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.comm.ledger import entries

MESSAGES = ("send", "recv")
MAKES = re.compile(r"::new_|_like$")  # they read a tensor's size alone
SCATTERED = "Tensors must be contiguous: gloo would add up the numbers between those of a slice"
NOT_ITSELF = "no rank can send to itself, or receive from itself"


@dataclass(frozen=True)
class Event:
    """One event on this rank.

    Attributes:
        kind: "gradient", "message", "wait", or a mark that the check has set.
        name: of the parameter, or of the collective.
        nbytes: of a message's payload.
    """

    kind: str
    name: str = ""
    nbytes: int = 0


@dataclass(frozen=True)
class Call:
    """One call of torch.distributed on one rank.

    Attributes:
        name: "send", "recv", or a collective's.
        peer: the other rank of a message; None of a collective, or where any may send.
        nbytes: of the message, or of the collective's payload.
        sent: bytes that this rank sends for it, by the formula of the collective.
    """

    name: str
    peer: int | None
    nbytes: int
    sent: float = field(default=0.0, compare=False)


class Watch(TorchDispatchMode):
    """Note events in the block. A sum reaches its buffer when the rank waits for it, no sooner.

    The message starts at once, but from a copy. So a rank that reads the buffer too early always
    reads the old numbers, not only when the network happens to be slow.

    Attributes:
        events: in order.
        calls: of torch.distributed, in order.
        payloads: the input of each all-reduce, flat.
        requests: of the all-reduces.
        works: the requests that isend, irecv, send and recv have made.
        late: which of the given tensors were read only after a receive had been waited for.

    Args:
        given: arguments of the student's function.
    """

    def __init__(self, given: Sequence = ()):
        super().__init__()
        self.late: list[int] = []
        self.unread = {
            one.untyped_storage().data_ptr(): place
            for place, one in enumerate(given)
            if type(one) is torch.Tensor and one.numel()
        }
        self.received: list[dist.Work] = []
        self.events: list[Event] = []
        self.payloads: list[torch.Tensor] = []
        self.requests: list[Request] = []
        self.calls: list[Call] = []
        self.works: list[dist.Work] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """True, as by default, would import the compiler at the first call: a second on each rank.

        Nothing is compiled here. Where PyTorch does not ask, this has no effect.
        """
        return False

    def mark(self, kind: str, name: str = ""):
        self.events.append(Event(kind, name))

    def unwaited(self) -> int:
        """Requests that nobody has waited for: gloo's are complete when waited for, not before."""
        open_works = sum(not work.is_completed() for work in self.works)
        return open_works + sum(not request.over for request in self.requests)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, "namespace", "") not in ("c10d", "_c10d_functional"):
            out = func(*args, **kwargs)
            if self.unread and not MAKES.search(func._schema.name):
                self.reads(storages(args), storages(out))
            return out
        if func._schema.name == "c10d::allreduce_":
            copies = [tensor.clone() for tensor in args[0]]
            if any(a.stride() != b.stride() for a, b in zip(copies, args[0], strict=True)):
                raise ValueError(SCATTERED)
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
        peer = given.get("dst", given.get("src"))
        if func._schema.name in ("c10d::send", "c10d::recv_"):
            reachable(peer)
        message = False
        for entry in entries(func, args, kwargs):
            message = entry.call in MESSAGES
            self.events.append(Event("message", entry.call, entry.payload))
            peer = peer if message else None
            self.calls.append(Call(entry.call, peer, entry.payload, entry.wire or 0.0))
        if func._schema.name != "c10d::allreduce_":
            out = func(*args, **kwargs)
            if message and isinstance(out, torch.ScriptObject):
                self.works.append(dist.Work.unbox(out))
                if entry.call == "recv":
                    self.received.append(self.works[-1])
            return out
        given, *rest = args
        self.payloads.append(torch.cat([tensor.flatten() for tensor in copies]))
        _, work = func(copies, *rest, **kwargs)
        request = Request(dist.Work.unbox(work), copies, given, self.events)
        self.requests.append(request)
        return given, request.boxed()

    def reads(self, taken: set[int], made: set[int]):
        """Note the first reads of what was given. A view, with the same memory, reads nothing."""
        for one in taken & self.unread.keys() - made:
            place = self.unread.pop(one)
            if any(work.is_completed() for work in self.received):
                self.late.append(place)

    def since(self, mark: str) -> list[Event]:
        """The events after the first mark of that kind."""
        kinds = [event.kind for event in self.events]
        return self.events[kinds.index(mark) + 1 :] if mark in kinds else []


def storages(values) -> set[int]:
    tensors = (one for one in tree_leaves(values) if type(one) is torch.Tensor)
    return {one.untyped_storage().data_ptr() for one in tensors}


class Request(dist.Work):
    """An all-reduce on copies; `wait` copies the sums into the caller's tensors."""

    def __init__(self, inner, copies, given, events):
        super().__init__()
        self.inner, self.copies, self.given, self.events = inner, copies, given, events
        self.over = False

    def wait(self, timeout=None):
        self.events.append(Event("wait"))
        return self.land()

    def is_completed(self):
        return self.inner.is_completed() and self.land()

    def get_future(self):
        self.land()
        return self.inner.get_future()

    def land(self) -> bool:
        if not self.over:
            self.inner.wait()
            self.over = True
            for copy, tensor in zip(self.copies, self.given, strict=True):
                tensor.detach().copy_(copy)
        return True


def reachable(peer: int):
    """gloo would wait for a rank that is not there, and give up, with no Python, on itself."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if peer == rank:
        raise ValueError(f"{NOT_ITSELF}: rank {rank} wants to")
    if not 0 <= peer < ranks:
        raise ValueError(f"there is no rank {peer}: of {ranks}, the last is {ranks - 1}")
