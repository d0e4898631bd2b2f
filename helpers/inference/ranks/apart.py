"""Disaggregated serving: prefill and decode on separate ranks, or together on each rank.

Together: a rank that reads a long prompt computes nothing else in that step. All streams of the
rank pause. Apart: rank 0 reads prompts, and rank 1 continues. It never reads a prompt, so its
streams go on. The blocks of the cache travel to it, and a thread copies them into its cache.

    with Cluster(workers=2) as cluster:
        ranks = cluster.run(serve_apart, model=model, requests=requests, blocks=64)
    Streams.of_all(ranks).frame()

All choices are greedy.

Sources: Patel et al. 2024, "Splitwise", arXiv:2311.18677, section 4; Zhong et al. 2024,
"DistServe", arXiv:2401.09670, section 2.

B  running sequences
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from helpers.comm.point_to_point import PointToPoint
from helpers.comm.transport import GroupTransport
from helpers.inference.ranks.handover import Inbox, Prefilled, Sender
from helpers.inference.ranks.streams import Arrival, Stream, Streams
from helpers.models.caches.paged import Paged, PagedSequence
from helpers.models.caches.paged_batch import PagedBatch
from helpers.models.gpt import GPT, kept_by

PREFILL, DECODE = 0, 1  # ranks


def serve_together(
    worker, *, model: GPT, requests: Sequence[Arrival], blocks: int, block_size: int = 16
) -> Streams:
    """Serve every N-th request on this rank: read its prompt, and continue it.

    A prompt that has arrived is read before the next decoding step, alone and whole.

    Args:
        model: the whole model, on every rank.
        requests: all requests, the same on every rank. Rank r serves the requests r, r + N, …
        blocks, block_size: of each rank's paged cache.

    Raises:
        ValueError: a request does not fit. Every rank raises it.
    """
    rank = Rank(model, requests, blocks, block_size)
    waiting = rank.by_arrival(range(worker.rank, len(requests), worker.world_size))
    clock = start(worker)
    while waiting or rank.running:
        now = clock()
        if waiting and requests[waiting[0]].at <= now and rank.has_room(waiting[0]):
            number = waiting.pop(0)
            sequence, token = rank.read(number)
            rank.admit(number, sequence, token, clock())
        elif rank.running:
            rank.step(clock)
        else:
            time.sleep(requests[waiting[0]].at - now)
    return rank.result


def serve_apart(
    worker, *, model: GPT, requests: Sequence[Arrival], blocks: int, block_size: int = 16
) -> Streams:
    """Read all prompts on rank 0, and continue them on rank 1.

    Args:
        model, requests, blocks, block_size: as for `serve_together`.

    Returns:
        Rank 0: the bytes that it handed over. Rank 1: the streams.

    Raises:
        ValueError: there are not two ranks, the model has recurrent states, or a request does not
            fit. Both ranks raise it.
    """
    if worker.world_size != 2:
        raise ValueError(
            f"prefill and decode apart needs two ranks, not {worker.world_size}: use "
            "Cluster(workers=2)"
        )
    rank = Rank(model, requests, blocks, block_size)
    messages = PointToPoint()
    clock = start(worker)
    if worker.rank == PREFILL:
        read_all(rank, Sender(messages, DECODE, rank.paged), clock)
    else:
        continue_all(rank, Inbox(messages, PREFILL, rank.paged), clock)
    return rank.result


def read_all(rank: "Rank", sender: Sender, clock: Callable[[], float]):
    """The prefill rank: read each prompt when it arrives, hand it over, and forget it."""
    for number in rank.by_arrival(range(len(rank.requests))):
        time.sleep(max(0.0, rank.requests[number].at - clock()))
        sequence, token = rank.read(number)
        rank.result.handed[number] = sender.send(number, sequence, token)
        sequence.free()
    sender.finish()


def continue_all(rank: "Rank", inbox: Inbox, clock: Callable[[], float]):
    """The decoding rank: take the prompts that have arrived, as long as there is room.

    A thread copies their blocks, so that the running streams do not wait.
    """
    arrived: list[Prefilled] = []
    with ThreadPoolExecutor(1, "placing") as copier:
        while not inbox.ended or arrived or rank.placing or rank.running:
            idle = not (arrived or rank.placing or rank.running)
            arrived.extend(inbox.take(wait=idle))
            while arrived and rank.has_room(arrived[0].number):
                rank.place(arrived.pop(0), copier)
            rank.admit_placed(clock)
            if rank.running:
                rank.step(clock)


class Rank:
    """A model, its paged cache, and the requests that run on this rank.

    Attributes:
        running: the requests that want more tokens, each with its sequence.
        placing: the requests whose blocks are being copied: sequence, first token, end of the copy.
        result: what this rank will return.

    Raises:
        ValueError: a request does not fit.
    """

    def __init__(self, model: GPT, requests: Sequence[Arrival], blocks: int, block_size: int):
        first = next(model.parameters())
        self.model, self.requests = model.eval(), requests
        self.paged = Paged(kept_by(model), blocks, block_size, first.dtype, first.device)
        self.running: dict[int, PagedSequence] = {}
        self.placing: dict[int, tuple[PagedSequence, int, Future]] = {}
        self.result = Streams({}, [], {})
        self.read_since = 0  # tokens of prompts since the last step
        for number, request in enumerate(requests):
            self.check(number, request, blocks)

    def check(self, number: int, request: Arrival, blocks: int):
        if not request.prompt or request.new_tokens < 1:
            raise ValueError(
                f"request {number} has {len(request.prompt)} tokens and asks for "
                f"{request.new_tokens}; both must be at least 1"
            )
        total, context = len(request.prompt) + request.new_tokens, self.model.config.context
        if total > context + 1:  # the last new token is not read
            raise ValueError(f"request {number} has {total} tokens, the context is {context}")
        if self.needed(number) > blocks:
            raise ValueError(
                f"request {number} needs {self.needed(number)} blocks, but there are {blocks}: "
                "make the cache larger"
            )

    def by_arrival(self, numbers) -> list[int]:
        return sorted(numbers, key=lambda number: self.requests[number].at)

    def needed(self, number: int) -> int:
        """The blocks of a request at its end. Its last new token is not read."""
        request = self.requests[number]
        return self.paged.blocks_of(len(request.prompt) + request.new_tokens - 1)

    def has_room(self, number: int) -> bool:
        """Whether this request and all running ones can go on to their ends."""
        every = sum(map(self.needed, [*self.running, *self.placing, number]))
        return every <= self.paged.allocator.blocks

    @torch.no_grad()
    def read(self, number: int) -> tuple[PagedSequence, int]:
        """Read a whole prompt; return its sequence and the first new token."""
        prompt = self.requests[number].prompt
        sequence = self.paged.sequence()
        tokens = torch.tensor([prompt], device=self.paged.device)
        logits = self.model(tokens, cache=PagedBatch(self.paged, [sequence]))
        if self.running:
            self.read_since += len(prompt)
        return sequence, int(logits[0, -1].argmax())

    def place(self, one: Prefilled, copier: ThreadPoolExecutor):
        """Reserve blocks for a prompt that another rank has read, and begin to copy."""
        sequence = one.reserve_in(self.paged)
        copied = copier.submit(one.copy_to, sequence)
        self.placing[one.number] = sequence, one.token, copied

    def admit_placed(self, clock: Callable[[], float]):
        """Begin the streams whose blocks are copied. Wait for the first one if none is running."""
        for number, (sequence, token, copied) in list(self.placing.items()):
            if self.running and not copied.done():
                return  # those after it are not copied either
            copied.result()
            del self.placing[number]
            self.admit(number, sequence, token, clock())

    def admit(self, number: int, sequence: PagedSequence, token: int, now: float):
        """Begin a stream with its first token."""
        self.result.streams[number] = Stream(self.requests[number].at)
        self.running[number] = sequence
        self.emit({number: token}, now)

    @torch.no_grad()
    def step(self, clock: Callable[[], float]):
        """Compute the next token of every running request."""
        last = [[self.result.streams[number].tokens[-1]] for number in self.running]
        tokens = torch.tensor(last, device=self.paged.device)  # (B, 1)
        cache = PagedBatch(self.paged, list(self.running.values()))
        chosen = self.model(tokens, cache=cache)[:, -1].argmax(-1).tolist()
        self.result.interrupted.append(self.read_since)
        self.read_since = 0
        self.emit(dict(zip(self.running, chosen, strict=True)), clock())

    def emit(self, chosen: Mapping[int, int], now: float):
        """Give each stream its token, and end those that have all tokens."""
        for number, token in chosen.items():
            stream = self.result.streams[number]
            stream.tokens.append(token)
            stream.times.append(now)
            if len(stream.tokens) == self.requests[number].new_tokens:
                self.running.pop(number).free()


def start(worker) -> Callable[[], float]:
    """Begin on all ranks together; return a clock: seconds since then.

    All clocks have the same origin: the latest time of day of any rank. From there on each rank
    uses its own clock that never goes back.
    """
    today = torch.tensor([time.time()], dtype=torch.float64, device=worker.device)
    GroupTransport().maximum(today).wait()  # no rank is late
    began = time.perf_counter() + today.item() - time.time()
    return lambda: time.perf_counter() - began
