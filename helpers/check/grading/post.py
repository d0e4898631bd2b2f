"""The judge's post: it carries messages between sandboxes that are a rank each, and counts them.

What a rank sent and received is known here, outside the submitted code's reach.
"""

import pickle
import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from helpers.check.grading import frames, plain
from helpers.check.grading.sandbox import START_SECONDS, Late, Sandbox
from helpers.check.traffic import Call

BLOCKED = 2.0  # seconds in which another thread of a rank could still send
MOST = 100_000  # messages and receives of a rank
KEPT = 256 << 20  # bytes of messages under way


@dataclass
class Letter:
    """A message under way, or a receive that was begun: `data` is None."""

    rank: int
    number: int
    peer: int | None
    tag: int
    data: bytes | None

    def fits(self, other: "Letter") -> bool:
        """Whether this message is for that receive."""
        meant = self.peer == other.rank and other.peer in (None, self.rank)
        return meant and self.tag == other.tag


class Post:
    """The letters of one call on ranks.

    Attributes:
        calls: of each rank, in order.
        open: how many messages and receives of each rank it has not yet waited for to the end.
        waiting: for each rank, the numbers of the requests that it waits for.
    """

    def __init__(self, ranks: int):
        self.ranks = ranks
        self.calls: list[list[Call]] = [[] for _ in range(ranks)]
        self.open, self.kept = [0] * ranks, 0
        self.sent: list[Letter] = []
        self.begun: list[Letter] = []
        self.over: dict[tuple[int, int], list] = {}  # replies to requests that are complete
        self.waiting: list[set[int]] = [set() for _ in range(ranks)]

    def takes(self, rank: int, request: list) -> bool:
        """Whether this is a request, and not the rank's last word.

        Raises:
            ValueError: more is under way than any answer to an exercise needs.
        """
        match request:
            case ["send" | "recv", _, int(peer), *_] if peer == rank or not 0 <= peer < self.ranks:
                return False  # no call of torch.distributed: it would count as bytes
            case ["send", int(number), int(to), int(tag), bytes(data)]:
                self.calls[rank].append(Call("send", to, len(data)))
                self.add(Letter(rank, number, to, tag, data))
            case ["recv", int(number), int() | None as source, int(tag), int(room)]:
                self.calls[rank].append(Call("recv", source, room))
                self.add(Letter(rank, number, source, tag, None))
            case ["wait", int(number)]:
                self.waiting[rank].add(number)
            case _:
                return False
        return True

    def add(self, letter: Letter):
        """Keep the letter until its other side begins: from rank to rank, they stay in order."""
        self.open[letter.rank] += 1
        self.kept += len(letter.data or b"")
        if len(self.calls[letter.rank]) > MOST or self.kept > KEPT:
            raise ValueError("sent more than any answer needs")
        mine, others = self.begun, self.sent
        if letter.data is not None:
            mine, others = self.sent, self.begun
        for other in others:
            message, receive = (letter, other) if mine is self.sent else (other, letter)
            if message.fits(receive):
                others.remove(other)
                self.over[message.rank, message.number] = [message.peer, b""]
                self.over[receive.rank, receive.number] = [message.rank, message.data]
                return
        mine.append(letter)

    def doing(self, rank: int, running: bool) -> str:
        """Say what the rank does when nothing moves."""
        if not running:
            return "has returned"
        for letter in (*self.begun, *self.sent):
            if letter.rank == rank and letter.number in self.waiting[rank]:
                way = "receive from" if letter.data is None else "send to"
                return f"waits to {way} {'any' if letter.peer is None else letter.peer}"
        return "neither sends, receives nor returns"

    def replies(self) -> Iterator[tuple[int, bytes]]:
        """Yield a rank, and the reply that it waits for, for each request that is complete."""
        for rank, numbers in enumerate(self.waiting):
            for number in [one for one in numbers if (rank, one) in self.over]:
                numbers.remove(number)
                source, data = self.over.pop((rank, number))
                self.open[rank] -= 1
                self.kept -= len(data)
                yield rank, plain.pack([number, source, data])


class Rank:
    """One of the ranks that a sandbox has forked: its own socket to the judge."""

    def __init__(self, box: Sandbox, line: socket.socket):
        self.box, self.line = box, line
        self.orders = self.answers = line.fileno()
        self.check_limits = box.check_limits  # of all ranks together

    def tell(self, order: bytes, end: float):
        self.box.unbroken(frames.write, self.orders, order, end)

    def hear(self, end: float) -> bytes:
        return self.box.unbroken(frames.read, self.answers, end)

    def end(self):
        self.line.close()


def ranks_of(box: Sandbox, number: int) -> list[Rank | Sandbox]:
    """Return so many ranks that have no network, no writable file and no process in common.

    They are forks of the sandbox's program, which must not have run submitted code. Where the
    system lets no process leave its sandbox's namespaces, each rank has a sandbox of its own: that
    takes longer to start.
    """
    missing = number - len(box.ranks)
    if missing > 0:
        box.ranks += forked(box, missing) or started(box, missing)
    return box.ranks[:number]


def forked(box: Sandbox, number: int) -> list[Rank]:
    pairs = [socket.socketpair() for _ in range(number)]
    socket.send_fds(box.control, [b"."], [theirs.fileno() for _, theirs in pairs])
    answer = plain.unpack(box.ask(pickle.dumps(("fork", (number,))), START_SECONDS))
    for _, theirs in pairs:
        theirs.close()
    if answer == ["returned", (True, None)]:
        return [Rank(box, mine) for mine, _ in pairs]
    for mine, _ in pairs:
        mine.close()
    return []


def started(box: Sandbox, number: int) -> list[Sandbox]:
    new = [Sandbox(box.limits, box.trusted, wait=False) for _ in range(number)]
    for one in new:
        one.wait()
    return new


class Stopped(Exception):
    """A rank did not return: its number, and what it answered."""


def carry(boxes: Sequence[Rank | Sandbox], orders: Sequence[bytes], seconds: float, silence: float):
    """Give each rank its order, and carry their messages until each has returned.

    Returns:
        What the ranks returned; of each rank, its calls, and how many it did not wait for.

    Raises:
        Stopped: a rank answered something else.
        Late: no rank makes progress. Broken: a sandbox has ended.
        ValueError: a rank's answer is no data, or it has sent too much.
    """
    post, answers = Post(len(boxes)), {}
    heard = time.monotonic()
    end = heard + seconds
    for box, order in zip(boxes, orders, strict=True):
        box.tell(order, end)
    while left := [rank for rank in range(len(boxes)) if rank not in answers]:
        ranks = {boxes[rank].answers: rank for rank in left}
        for rank in map(ranks.get, select.select(list(ranks), [], [], frames.TURN)[0]):
            found, heard = plain.unpack(boxes[rank].hear(end)), time.monotonic()
            if not post.takes(rank, found):
                if not isinstance(found, list) or found[:1] != ["returned"]:
                    raise Stopped(rank, found)
                answers[rank] = found[1:]
        for rank, reply in post.replies():
            boxes[rank].tell(reply, end)
        for box in boxes:
            box.check_limits()
        stuck = all(post.waiting[rank] for rank in left)
        if time.monotonic() > min(end, heard + (BLOCKED if stuck else silence)):
            raise Late("; ".join(f"rank {r} {post.doing(r, r in left)}" for r in range(post.ranks)))
    return [answers[rank] for rank in range(len(boxes))], post.calls, post.open
