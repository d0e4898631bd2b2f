"""Hand the blocks of a paged cache from the rank that read a prompt to the rank that continues it.

A handover is two messages: a header of four int64, and the blocks. Only the bytes of tensors
travel. The sender has its own block numbers and the receiver has others.

n  blocks of a prompt
"""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from helpers.comm.point_to_point import PointToPoint
from helpers.models.caches.paged import Paged, PagedSequence

END = -1  # in place of a request's number: no more prompts


@dataclass(frozen=True, kw_only=True)
class Prefilled:
    """A prompt that another rank has read.

    Attributes:
        number: of the request.
        length: the prompt's tokens.
        token: the first new token.
        blocks: (n, numbers in a block), what the cache keeps of the prompt.
    """

    number: int
    length: int
    token: int
    blocks: torch.Tensor

    def reserve_in(self, paged: Paged) -> PagedSequence:
        """Reserve blocks in a cache of the same shape, for a new sequence. `copy_to` fills them.

        Raises:
            OutOfBlocks: the cache has too few free blocks. It is as before.
        """
        sequence = paged.sequence()
        try:
            paged.reserve([sequence], [self.length], clear=False)
        except BaseException:
            sequence.free()
            raise
        sequence.length = self.length
        return sequence

    def copy_to(self, sequence: PagedSequence):
        """Fill the reserved blocks. Other sequences may be read and written meanwhile."""
        store = sequence.paged.store
        blocks = self.blocks.to(store.memory.device)
        store.memory.index_copy_(0, store.index(sequence.table), blocks)


class Sender:
    """Send prompts to another rank, without waiting until it takes them.

    Args:
        messages: of a group with both ranks.
        to: the receiver's place in the group.
        like: the cache whose blocks are sent.

    Raises:
        ValueError: the model has recurrent states, which are not in the blocks.
    """

    def __init__(self, messages: PointToPoint, to: int, like: Paged):
        check_states(like)
        self.messages, self.to, self.device = messages, to, like.store.memory.device

    def send(self, number: int, sequence: PagedSequence, token: int) -> int:
        """Send one prompt's blocks. The sequence may be freed at once.

        Returns:
            The bytes of both messages.
        """
        paged = sequence.paged
        table = sequence.table[: paged.blocks_of(sequence.length)]
        blocks = paged.store.memory.index_select(0, paged.store.index(table))  # a copy
        return self.header(number, sequence.length, len(table), token) + self.put(blocks)

    def finish(self):
        """Say that there are no more prompts, and wait until every message has left."""
        self.header(END, 0, 0, 0)
        self.messages.finish()

    def header(self, *numbers: int) -> int:
        return self.put(torch.tensor(numbers, dtype=torch.int64, device=self.device))

    def put(self, tensor: torch.Tensor) -> int:
        self.messages.send(tensor, self.to)
        return tensor.nbytes


class Inbox:
    """Receive prompts in a thread, while this rank decodes. No other thread may receive meanwhile.

    Args:
        messages: of a group with both ranks.
        source: the sender's place in the group.
        like: the cache whose blocks are received.

    Raises:
        ValueError: the model has recurrent states, which are not in the blocks.
    """

    def __init__(self, messages: PointToPoint, source: int, like: Paged):
        check_states(like)
        self.messages, self.source, self.memory = messages, source, like.store.memory
        self.arrived: queue.SimpleQueue[Prefilled | BaseException | None] = queue.SimpleQueue()
        self.ended = False
        self.thread = threading.Thread(target=self.receive_all, name="inbox", daemon=True)
        self.thread.start()

    def receive_all(self):
        try:
            while (one := self.receive()) is not None:
                self.arrived.put(one)
            self.arrived.put(None)
        except BaseException as error:  # raised again where the prompts are taken
            self.arrived.put(error)

    def receive(self) -> Prefilled | None:
        header = torch.empty(4, dtype=torch.int64, device=self.memory.device)
        self.messages.receive(header, self.source).wait()
        number, length, count, token = header.tolist()
        if number == END:
            return None
        blocks = self.memory.new_empty(count, self.memory.shape[1])
        work = self.messages.receive(blocks, self.source)
        if work is not None:
            work.wait()
        return Prefilled(number=number, length=length, token=token, blocks=blocks)

    def take(self, wait: bool) -> Iterator[Prefilled]:
        """Yield the prompts that have arrived.

        Args:
            wait: whether to wait for one, unless the sender has finished.

        Raises:
            RuntimeError: as the process group raises, if the sender is gone.
        """
        while not self.ended:
            try:
                one = self.arrived.get(block=wait)
            except queue.Empty:
                return
            if isinstance(one, BaseException):
                raise one
            if one is None:
                self.ended = True
                self.thread.join()
            else:
                wait = False
                yield one


def check_states(paged: Paged):
    if paged.states:
        raise ValueError(
            "a recurrent block's state is not in the paged blocks: read and continue the prompts "
            "of this model on one rank"
        )
