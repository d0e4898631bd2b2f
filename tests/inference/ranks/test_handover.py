"""A prompt that another rank has read continues as if this rank had read it."""

import threading

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.point_to_point import PointToPoint
from helpers.comm.regions import Ready
from helpers.inference.ranks.handover import END, Inbox, Prefilled, Sender
from helpers.models.caches.allocator import OutOfBlocks
from helpers.models.caches.cache import Kept
from helpers.models.caches.paged import Paged
from helpers.models.caches.paged_batch import PagedBatch
from helpers.models.gpt import GPTConfig, build, kept_by
from helpers.plans.decode_traffic import handover_bytes
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")
CONFIG = GPTConfig(vocab=19, context=24, width=16, heads=4, kv_heads=2, layers=2)
PROMPTS = [[1], [2, 3, 4, 5], [6, 7, 8, 9, 10, 11, 12, 13, 14]]  # of 1, 1 and 3 blocks of 4


def paged_of(model, blocks):
    return Paged(kept_by(model), blocks, 4, torch.float64)


@torch.no_grad()
def read(model, paged, prompt):
    sequence = paged.sequence()
    return sequence, model(torch.tensor([prompt]), cache=PagedBatch(paged, [sequence]))[0, -1]


@torch.no_grad()
def hand_over(worker, prompts):
    model, messages = build(CONFIG, 0, torch.float64), PointToPoint()
    if worker.rank == 0:
        paged = paged_of(model, 8)
        sender, sent = Sender(messages, 1, paged), []
        for number, prompt in enumerate(prompts):
            sequence, logits = read(model, paged, prompt)
            paged.reserve([sequence], [8])  # as after a forward that failed: blocks without tokens
            with ledger() as log:
                count = sender.send(number, sequence, int(logits.argmax()))
            sent.append((count, [entry.call for entry in log.entries], log.payload))
            sequence.free()
            paged.store.memory.fill_(torch.nan)  # what was sent is a copy
            paged.store.memory.zero_()
        sender.finish()
        assert not messages.leaving
        return sent
    paged = paged_of(model, 12)
    read(model, paged, [3, 1, 4, 1, 5])  # so that the block numbers differ
    inbox, found = Inbox(messages, 0, paged), {}
    while not inbox.ended:
        for one in inbox.take(wait=True):
            sequence = one.reserve_in(paged)
            one.copy_to(sequence)
            token = torch.tensor([[one.token]])
            logits = model(token, cache=PagedBatch(paged, [sequence]))[0, -1]
            found[one.number] = (one.length, one.token, len(sequence.table), logits)
    return found, paged.free_blocks, inbox.thread.is_alive()


def test_tokens_lengths_and_bytes():
    sent, (found, free, alive) = launch(hand_over, 2, device="cpu", prompts=PROMPTS)
    model = build(CONFIG, 0, torch.float64)
    sizes = {"layers": 2, "key_heads": 2, "head_width": 4, "block_size": 4, "number_bytes": 8}
    for number, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            token = int(model(torch.tensor([prompt]))[0, -1].argmax())
            expected = model(torch.tensor([[*prompt, token]]))[0, -1]
        length, first, _, logits = found[number]
        assert (length, first) == (len(prompt), token)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
        in_bytes = handover_bytes(tokens=len(prompt), **sizes)
        assert sent[number] == (in_bytes, ["send", "send"], in_bytes)
    assert [found[n][2] for n in range(3)] == [1, 2, 3]  # with the token that was decoded
    assert free == 12 - 2 - (1 + 2 + 3)
    assert not alive


def test_nothing_is_sent():
    _, (found, _, alive) = launch(hand_over, 2, device="cpu", prompts=[])
    assert found == {}
    assert not alive


def test_without_room_the_cache_is_as_before():
    model = build(CONFIG, 0, torch.float64)
    paged = paged_of(model, 3)
    read(model, paged, [3, 1, 4, 1, 5])
    memory = paged.store.memory.clone()
    one = Prefilled(number=0, length=5, token=1, blocks=memory[:2] + 1)
    with pytest.raises(OutOfBlocks, match="2 more blocks are needed, but 1 of 3"):
        one.reserve_in(paged)
    assert paged.free_blocks == 1
    assert len(paged.sequences) == 1
    assert torch.equal(paged.store.memory, memory)


def test_a_recurrent_state_is_refused():
    paged = Paged({0: Kept(per_sequence=((3,),))}, 4, 4)
    for make in (Sender, Inbox):
        with pytest.raises(ValueError, match="a recurrent block's state is not in the paged block"):
            make(None, 1, paged)


def lost(worker):
    model = build(CONFIG, 0, torch.float64)
    if worker.rank == 0:
        raise MemoryError("no room for the prompt")
    inbox = Inbox(PointToPoint(), 0, paged_of(model, 4))
    return list(inbox.take(wait=True))


def test_a_sender_that_fails_is_named():
    with pytest.raises(WorkerError, match="no room for the prompt") as caught:
        launch(lost, 2, device="cpu", timeout=20)
    assert caught.value.rank == 0


class Slow:
    """One prompt without blocks; the end follows when it is allowed."""

    def __init__(self):
        self.headers, self.allowed = iter([[5, 0, 0, 7], [END, 0, 0, 0]]), threading.Event()

    def receive(self, buffer, source):
        if not buffer.numel():
            return None
        header = next(self.headers)
        if header[0] == END:
            self.allowed.wait(10)
        return Ready(buffer.copy_(torch.tensor(header)))


def test_a_prompt_that_is_there_waits_for_no_other():
    inbox = Inbox(slow := Slow(), 0, paged_of(build(CONFIG, 0, torch.float64), 4))
    [one] = inbox.take(wait=True)
    assert (one.number, one.token, inbox.ended) == (5, 7, False)
    assert list(inbox.take(wait=False)) == []
    slow.allowed.set()
    assert list(inbox.take(wait=True)) == []
    assert inbox.ended


def test_prompts_that_arrived_before_the_end_are_taken_after_it():
    slow = Slow()
    slow.headers = iter([[5, 0, 0, 7], [6, 0, 0, 8], [END, 0, 0, 0]])
    slow.allowed.set()
    inbox = Inbox(slow, 0, paged_of(build(CONFIG, 0, torch.float64), 4))
    inbox.thread.join(10)
    assert not inbox.ended
    assert [one.number for one in inbox.take(wait=True)] == [5, 6]
    assert inbox.ended


class Broken:
    def receive(self, *_):
        raise RuntimeError("connection closed by peer")


def test_an_error_in_the_thread_is_raised_where_the_prompts_are_taken():
    inbox = Inbox(Broken(), 0, paged_of(build(CONFIG, 0, torch.float64), 4))
    with pytest.raises(RuntimeError, match="closed by peer"):
        list(inbox.take(wait=True))
