"""A process group over gloo that keeps the order of NCCL: a double, for machines without GPUs.

`launch` gives NCCL a device, so NCCL starts eagerly: each process group has one communicator and
one stream. All operations of a group, single sends and receives too, run one after the other in
the order of their calls. An operation begins when every rank in it has reached it. Here a queue
with one thread does the same for each group, and gloo moves the numbers.

NCCL connects the ranks of a group in its first collective, and two ranks in their first message.
Until then the call blocks, on every side. So does the double.

The double also refuses what goes wrong on NCCL without a word: a tensor that changes between the
call and `wait`, and calls on one group from two threads.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


class Work(dist.Work):
    """An operation in the queue.

    Args:
        future: gives the numbers that each tensor must have at `wait`.
        tensors: they live until the operation is over.
    """

    def __init__(self, name: str, future: Future, tensors):
        super().__init__()
        self.name, self.future, self.tensors = name, future, tensors

    def wait(self, timeout=None):
        for tensor, due in zip(self.tensors, self.future.result(), strict=True):
            if not same(tensor, due):
                raise RuntimeError(f"a tensor of {self.name} has changed before wait()")
        return True

    def is_completed(self):
        return self.future.done()


def same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit by bit: NaN equals NaN."""
    bits = [one.detach().contiguous().view(-1).view(torch.uint8) for one in (tensor, other)]
    return torch.equal(*bits)


class Ordered(dist.ProcessGroup):
    """One queue of operations for a group.

    Attributes:
        calls: the names of the operations, in the order of the calls.
    """

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)
        self.queue = ThreadPoolExecutor(1)
        self.caller, self.calls = None, []
        self.connected = set()  # of: "all", by a collective, and the ranks of messages

    bound_device_id = None
    group_name = property(lambda self: self._name)
    group_desc = property(lambda self: self._desc)
    getBackendName = name = lambda self: "ordered"

    def _set_group_name(self, name):
        self._name = name

    def _set_group_desc(self, text):
        self._desc = text

    def enqueue(self, name, start, *tensors, peers=("all",)):
        """Put an operation at the end of the queue: `start(*tensors)` returns a Work or None."""
        thread = threading.get_ident()
        if self.caller not in (None, thread):
            raise RuntimeError(f"{name}: another thread has called this group before")
        self.caller = thread
        self.calls.append(name)
        tensors = [tensor.detach() for tensor in tensors]
        given = [tensor.clone() for tensor in tensors]

        def run():
            if not all(map(same, tensors, given)):
                raise RuntimeError(f"a tensor of {name} has changed before its turn")
            if work := start(*tensors):
                work.wait()
            return [tensor.clone() for tensor in tensors]

        work = Work(name, self.queue.submit(run), tensors)
        if not self.connected.issuperset(peers):
            self.connected |= set(peers)
            work.wait()
        return work

    def allreduce(self, tensors, opts=None):
        opts = opts or dist.AllreduceOptions()
        return self.enqueue("all_reduce", lambda x: self.gloo.allreduce([x], opts), tensors[0])

    def broadcast(self, tensors, opts):
        return self.enqueue("broadcast", lambda x: self.gloo.broadcast([x], opts), tensors[0])

    def all_gather_single(self, out, own, opts=None):
        def start(out, own):
            rows = list(out.view(self.size(), -1).unbind(0))
            return self.gloo.allgather([rows], [own.reshape(-1)])

        return self.enqueue("all_gather", start, out, own)

    def reduce_scatter_single(self, own, every, opts=None):
        def start(own, every):
            row = every.clone()
            self.gloo.allreduce([row]).wait()
            own.copy_(row.view(self.size(), -1)[self.rank()].view_as(own))

        return self.enqueue("reduce_scatter", start, own, every)

    def all_to_all_single(self, out, every, out_sizes, sizes, opts=None):
        def start(out, every):
            return self.gloo.alltoall_base(out, every, out_sizes, sizes)

        return self.enqueue("all_to_all", start, out, every)

    # The names of these three before PyTorch 2.13:
    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single
    alltoall_base = all_to_all_single

    def barrier(self, opts=None):
        return self.enqueue("barrier", lambda _: self.gloo.barrier(), torch.zeros(1))

    def send(self, tensors, to, tag=0):
        def start(x):
            return self.gloo.send([x], to, tag)

        return self.enqueue(f"send to {to}", start, tensors[0], peers=(to,))

    def recv(self, tensors, source, tag=0):
        def start(x):
            return self.gloo.recv([x], source, tag)

        return self.enqueue(f"receive from {source}", start, tensors[0], peers=(source,))

    def together(self, kinds, tensors):
        """Messages between ncclGroupStart and ncclGroupEnd: one operation."""

        def start(*tensors):
            works = [
                getattr(self.gloo, kind)([x], peer, 0)
                for (kind, peer), x in zip(kinds, tensors, strict=True)
            ]
            for work in works:
                work.wait()

        peers = {peer for _, peer in kinds}
        return self.enqueue("messages together", start, *tensors, peers=peers)


def batch_isend_irecv(operations):
    group = operations[0].group or dist.group.WORLD
    kinds = [
        ("send" if one.op is dist.isend else "recv", dist.get_group_rank(group, one.peer))
        for one in operations
    ]
    return [group.together(kinds, [one.tensor for one in operations])]


def in_nccl_order(worker, fn, **arguments):
    """Call `fn(worker, **arguments)` in a world, whose groups keep the order of NCCL.

    Ranks that live on stay in this world.
    """
    if isinstance(dist.group.WORLD, Ordered):
        return fn(worker, **arguments)
    store = c10d._get_default_store()
    dist.destroy_process_group()
    if "ordered" not in dist.Backend.backend_list:
        dist.Backend.register_backend("ordered", lambda *a: Ordered(*a), devices=["cpu", "cuda"])
    dist.batch_isend_irecv = batch_isend_irecv
    place = {"rank": worker.rank, "world_size": worker.world_size}
    dist.init_process_group("ordered", store=dist.PrefixStore("again", store), **place)
    return fn(worker, **arguments)
