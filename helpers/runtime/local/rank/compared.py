"""Compare each collective and message with the other ranks' calls, before gloo starts it.

Gloo compares nothing. With tensors of different sizes it ends the process, or leaves old numbers in
the result; with different dtypes or operations it returns wrong numbers. So each rank notes its
calls in memory that all ranks share. The n-th collectives of a group belong together, and so do the
n-th messages from one rank to another with one tag. Of two ranks, the later one sees both notes.

This costs about a microsecond a call. Calls that C++ makes (DDP's reducer, functional collectives)
are not compared.
"""

import mmap
import os
import time
import weakref

import torch
import torch.distributed as dist

from helpers.runtime.report import named

SLOTS = 512  # notes that each rank keeps, of 16 bytes: a key, and what the call does
BYTES = 16 * SLOTS
LATER_SECONDS = 0.2  # until a second look
UNKNOWN = (1 << 38) - 1  # a number of elements that may differ between ranks
MOST = 256  # ranks, groups, and tags of messages that are compared
KINDS = list(dict.fromkeys(kind for kind in vars(torch).values() if type(kind) is torch.dtype))
DTYPES = {kind: number for number, kind in enumerate(KINDS)}
ELSEWHERE = 128  # added to the dtype's number, for a tensor that is not on the CPU
OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
ROOTS = {"broadcast": "src", "scatter": "src", "gather": "dst", "reduce": "dst"}
MESSAGE = 63  # the code of a send or recv
CALLS = {  # method of ProcessGroup: what it does on the wire, how to find the tensor, the option
    "allreduce": ("all_reduce", lambda args: args[0][0], "reduceOp"),
    "broadcast": ("broadcast", lambda args: args[0][0], "rootRank"),
    "reduce": ("reduce", lambda args: args[0][0], "rootRank"),
    "allgather": ("all_gather", lambda args: args[1][0], None),
    "all_gather_single": ("all_gather", lambda args: args[1], None),
    "gather": ("gather", lambda args: args[1][0], "rootRank"),
    "scatter": ("scatter", lambda args: args[0][0], "rootRank"),
    "reduce_scatter": ("reduce_scatter", None, None),
    "reduce_scatter_single": ("reduce_scatter", lambda args: args[1], "reduceOp"),
    "alltoall": ("all_to_all", None, None),
    "all_to_all_single": ("all_to_all", None, None),
    "barrier": ("barrier", None, None),
}
NAMES = list(dict.fromkeys(name for name, _, _ in CALLS.values()))


class CallsDiffer(RuntimeError):
    """The ranks' calls do not belong together; the text names both sides."""


class Order:
    """A group, and how many collectives and messages this rank has called in it."""

    def __init__(self, group, notes, known: bool):
        self.group, self.notes, self.known = weakref.ref(group), notes, known
        self.members = dist.get_process_group_ranks(group) if known else []
        self.number = int(group.group_name) if known else 0
        self.rank = group.rank() if known else 0
        self.bases = [2 * SLOTS * member for member in self.members]
        self.own = self.bases[self.rank] if known else 0
        self.next = 0
        self.messages: dict[tuple, int] = {}  # by (is it a send, the other rank, the tag)
        self.any = False  # a receive from any rank: this rank can number no more of them


def compare(memory: int):
    """Compare all calls of this rank from now on, in a memory of BYTES for each rank."""
    notes = memoryview(mmap.mmap(memory, 0)).cast("Q")
    os.close(memory)
    world, orders = weakref.ref(dist.group.WORLD), {}

    def order_of(group) -> Order:
        order = orders.get(id(group))
        if order is None or order.group() is not group:
            # A second default group, and a name that is no number, may begin again with number 0.
            known = world() is dist.group.WORLD and group.group_name.isdigit()
            known = known and int(group.group_name) < MOST and world().size() <= MOST
            order = orders[id(group)] = Order(group, notes, known)
        return order

    for method, (name, tensor, option) in CALLS.items():
        wrap(method, collective, order_of, NAMES.index(name), tensor, option)
    for method in ("send", "recv"):
        wrap(method, message, order_of, method == "send")
    wrap("recv_anysource", from_any, order_of)


def wrap(method: str, wrapper, *how):
    if original := getattr(dist.ProcessGroup, method, None):  # another PyTorch has other names
        setattr(dist.ProcessGroup, method, wrapper(original, *how))


def collective(original, order_of, code: int, tensor, option):
    def call(group, *args, **kwargs):
        order = order_of(group)
        if not order.known:
            return original(group, *args, **kwargs)
        does = code | UNKNOWN << 26
        if tensor:
            try:
                held, chosen = tensor(args), 0
                if option:
                    value = getattr(args[-1], option)
                    chosen = value if option == "rootRank" else hash(value)
                kind = DTYPES[held.dtype] if held.is_cpu else DTYPES[held.dtype] + ELSEWHERE
                does = code | kind << 6 | (chosen & 4095) << 14 | held.numel() << 26
            except Exception:  # PyTorch itself will refuse these arguments
                pass
        number = order.next
        key, at = 1 + number + (order.number << 40), 2 * ((order.number + number) % SLOTS)
        note(order, at, key, does, order.bases)
        order.next = number + 1
        try:
            return original(group, *args, **kwargs)
        except Exception:  # gloo has not started it
            order.next, order.notes[order.own + at] = number, 0
            raise

    return call


def message(original, order_of, sends: bool):
    def call(group, tensors, peer, tag):
        order = order_of(group)
        if not order.known or not 0 <= tag < MOST or (order.any and not sends):
            return original(group, tensors, peer, tag)
        if not 0 <= peer < len(order.bases):  # gloo would wait for it, and end the process
            last = len(order.bases) - 1
            raise ValueError(f"there is no rank {peer}: of {last + 1}, the last is {last}")
        one, pair = (sends, peer, tag), (order.rank, peer) if sends else (peer, order.rank)
        number = order.messages.get(one, 0)
        key = (1 << 63) + (order.number << 55) + (pair[0] << 47) + (pair[1] << 39) + (tag << 31)
        at = 2 * ((7 * pair[0] + 13 * pair[1] + tag + number) % SLOTS)
        does = MESSAGE | DTYPES[tensors[0].dtype] << 6 | tensors[0].numel() << 26
        note(order, at, key + number, does, [order.bases[rank] for rank in pair])
        order.messages[one] = number + 1
        try:
            return original(group, tensors, peer, tag)
        except Exception:
            order.messages[one], order.notes[order.own + at] = number, 0
            raise

    return call


def from_any(original, order_of):
    def call(group, tensors, tag):
        order_of(group).any = True
        return original(group, tensors, tag)

    return call


def note(order: Order, at: int, key: int, does: int, bases):
    """Note a call, and raise CallsDiffer if a rank, whose notes begin there, has noted another."""
    notes, own = order.notes, order.own + at
    notes[own + 1] = does
    notes[own] = key
    for base in bases:
        if notes[base + at] == key and notes[base + at + 1] != does:
            break
    else:
        return
    # A rank may be in the middle of its note, or PyTorch may refuse its call, so that it takes the
    # note back; and other ranks may still come. So look once more.
    time.sleep(LATER_SECONDS)
    there = [base for base in bases if notes[base + at] == key]
    found = {base // (2 * SLOTS): notes[base + at + 1] for base in there}
    if said := difference(found, order.members):
        raise CallsDiffer(said)


def difference(found: dict[int, int], members) -> str:
    """Return in one sentence how these ranks' calls differ; "" if they belong together.

    The sender's call comes first. Ranks are global, and roots are places among the `members`.
    """
    names = {rank: NAMES[does & 63] for rank, does in found.items() if does & 63 != MESSAGE}
    if len(set(names.values())) > 1:
        return listed({rank: ("call", name) for rank, name in names.items()})
    name, columns = next(iter(names.values()), ""), ({}, {}, {})
    for rank, does in found.items():
        if (size := does >> 26) == UNKNOWN:
            continue
        kind, option, verb = does >> 6 & 255, does >> 14 & 4095, "send"
        dtype = str(KINDS[kind % ELSEWHERE]).removeprefix("torch.")
        root = dict(enumerate(members)).get(option, option)
        if name == "scatter" or (name == "broadcast" and root != rank):
            verb = "receive"
        columns[0][rank] = verb, f"{size:,} number{'s' * (size != 1)}"
        columns[1][rank] = verb, dtype + " on another device" * (kind >= ELSEWHERE)
        named_root = ("name", f"{ROOTS[name]}={root}") if name in ROOTS else None
        columns[2][rank] = named_root or ("ask for", OPERATIONS[option])
    for column in columns:
        if len({value for _, value in column.values()}) > 1:
            if not name:
                (one, (_, has)), (other, (_, wants)) = column.items()
                return f"rank {one} sends {has} to rank {other}, which receives {wants.split()[0]}"
            return f"{listed(column)}, in {name}"
    return ""


def listed(values: dict[int, tuple[str, str]]) -> str:
    """Write "ranks 0 and 2 send 4 numbers, rank 1 sends 5": the ranks with their values."""
    same: dict[tuple[str, str], list[int]] = {}
    for rank, value in values.items():
        same.setdefault(value, []).append(rank)
    parts = []
    for (verb, value), ranks in same.items():
        first, _, rest = verb.partition(" ")
        verb = f"{first}{'s' * (len(ranks) == 1)} {rest}".strip()
        value = value.removesuffix(" numbers") if parts else value
        parts.append(f"{named(ranks)} {verb} {value}")
    return ", ".join(parts)
