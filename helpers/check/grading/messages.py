"""On a rank in a sandbox of its own: a process group that can send and receive, and nothing else.

Each message is written to the judge, who passes it on: the ranks have no network, no file and no
process in common. A collective has nothing to run on, in whatever thread and whatever way it is
called.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch
import torch.distributed as dist

from helpers.check.grading import frames, plain
from helpers.check.watch import reachable

NAME = "messages"
COLLECTIVE = re.compile(r"_?(all|reduce|broadcast|gather|scatter|barrier|monitored)")


class Post:
    """This rank's two pipes. Threads of a rank may send, and wait for messages, at the same time.

    Args:
        orders, answers: descriptors of the pipes, from the judge and to it.
    """

    def __init__(self, orders: int, answers: int):
        self.orders, self.answers = orders, answers
        self.writing, self.turn = threading.Lock(), threading.Condition()
        self.reading, self.arrived = False, {}

    def ask(self, *request):
        with self.writing:
            frames.write(self.answers, plain.pack(list(request)))

    def reply(self, number: int) -> list:
        """Return the judge's reply to the request, as soon as one of the threads has read it."""
        with self.turn:
            while number not in self.arrived:
                if self.reading:
                    self.turn.wait()
                    continue
                self.reading = True
                self.turn.release()
                try:
                    found, *reply = plain.unpack(frames.read(self.orders))
                finally:
                    self.turn.acquire()
                    self.reading = False
                    self.turn.notify_all()
                self.arrived[found] = reply
            return self.arrived.pop(number)


class Message(dist.Work):
    """A message that has begun. Like gloo's, it is complete when it has been waited for."""

    def __init__(self, post: Post, number: int, tensor: torch.Tensor, sent: bytes | None):
        super().__init__()
        self.post, self.number, self.tensor, self.sent = post, number, tensor, sent
        self.over, self.source = False, -1

    def wait(self, timeout=None) -> bool:
        if not self.over:
            self.post.ask("wait", self.number)
            self.source, data = self.post.reply(self.number)
            if self.sent not in (None, packed(self.tensor)):
                raise ValueError("wrote into a tensor that an isend had not sent yet: wait first")
            if data:  # where the sizes differ, the judge says so
                row = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                own = bytes_of(self.tensor)[: len(row)]
                own.copy_(row[: len(own)])
            self.over = True
        return True

    def is_completed(self) -> bool:
        return self.over

    def _source_rank(self) -> int:
        return self.source


class Messages(dist.ProcessGroup):
    """The group of all ranks. Where gloo would end a process, for a rank that is not there, it
    raises."""

    def __init__(self, post: Post, rank: int, ranks: int):
        super().__init__(rank, ranks)
        self.post, self.numbers = post, count()

    def getBackendName(self) -> str:
        return NAME

    def begin(self, kind: str, tensor: torch.Tensor, *about) -> Message:
        number = next(self.numbers)
        self.post.ask(kind, number, *about)
        return Message(self.post, number, tensor, about[-1] if kind == "send" else None)

    def send(self, tensors, to, tag):
        reachable(to)
        return self.begin("send", tensors[0], to, tag, packed(tensors[0]))

    def recv(self, tensors, source, tag):
        reachable(source)
        return self.begin("recv", tensors[0], source, tag, bytes_of(tensors[0]).numel())

    def recv_anysource(self, tensors, tag):
        return self.begin("recv", tensors[0], None, tag, bytes_of(tensors[0]).numel())


def refused(name: str):
    def refuse(self, *args, **kwargs):
        raise RuntimeError(
            f"called the collective {name}; these ranks have send, recv, isend and irecv alone"
        )

    return refuse


for _name in filter(COLLECTIVE.match, dir(dist.ProcessGroup)):
    setattr(Messages, _name, refused(_name))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's memory as a row of bytes.

    Raises:
        ValueError: it is not contiguous; gloo refuses it as well.
    """
    if not tensor.is_contiguous():
        raise ValueError("Tensors must be contiguous")
    return tensor.detach().view(-1).view(torch.uint8)


def packed(tensor: torch.Tensor) -> bytes:
    return bytes_of(tensor).numpy().tobytes()


@contextmanager
def joined(post: Post, rank: int, ranks: int) -> Iterator[None]:
    """Be this rank of so many, in the block: the default group has messages alone."""
    made = []

    def create(store, own_rank, size, timeout):
        if made:
            raise RuntimeError("made another process group; these ranks have one group alone")
        made.append(Messages(post, rank, ranks))
        return made[0]

    dist.Backend.register_backend(NAME, create, devices=["cpu"])
    dist.init_process_group(NAME, store=dist.HashStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
