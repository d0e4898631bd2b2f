"""Where chunks of tokens go, and which messages are on their way while one is multiplied."""

import pytest
import torch

from helpers.parallel.tensor.chunks import (
    arriving,
    gather_and_multiply,
    multiply_and_scatter,
    pieces,
)
from helpers.parallel.tensor.regions import Sharded

RANKS, B, D = 3, 2, 4


class Sent:
    def __init__(self, log, number):
        self.log, self.number = log, number

    def wait(self):
        self.log.append(f"waits for {self.number}")


class Log:
    """The first of three ranks. Rank r's shards are this rank's, plus 100 r; all sum alike."""

    size = RANKS

    def __init__(self):
        self.log, self.sent = [], 0

    def start(self) -> Sent:
        self.sent += 1
        self.log.append(f"sends {self.sent}")
        return Sent(self.log, self.sent)

    def all_gather(self, every, own):
        for rank in range(RANKS):
            every[rank] = own + 100 * rank
        return self.start()

    def reduce_scatter(self, own, every):
        own.copy_(RANKS * every[0])
        return self.start()


def numbers(*shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(*shape)


def whole(shard):
    return torch.cat([shard + 100 * rank for rank in range(RANKS)], 1)


@pytest.mark.parametrize(
    ("tokens", "chunks", "sizes"),
    [(7, 3, [3, 2, 2]), (7, 1, [7]), (2, 5, [1, 1]), (0, 3, [0]), (4, 0, [4])],
)
def test_pieces_are_equal_and_none_is_empty(tokens, chunks, sizes):
    found = pieces(tokens, chunks)
    assert sorted((p.stop - p.start for p in found), reverse=True) == sizes
    assert [i for p in found for i in range(tokens)[p]] == list(range(tokens))


def test_all_chunks_are_on_their_way_before_the_first_is_used():
    transport, shard = Log(), numbers(B, 5, D)
    for number, (place, chunk) in enumerate(arriving(shard, transport, 2), 1):
        assert transport.log == ["sends 1", "sends 2", "waits for 1", "waits for 2"][: 2 + number]
        assert torch.equal(chunk, whole(shard[:, place]))
    assert number == 2


@pytest.mark.parametrize("chunks", [1, 2])
def test_sums_are_cut_by_rank_and_a_chunk_is_sent_while_the_next_is_multiplied(chunks):
    transport, x, weight = Log(), numbers(B, 3 * 4, D), numbers(D, 2)

    def product(parts):
        transport.log.append("multiplies")
        return sum(parts) @ weight

    found = multiply_and_scatter([x, 2 * x], transport, chunks, product)
    assert torch.equal(found, RANKS * (3 * x @ weight)[:, :4])
    each = [word for n in range(1, chunks + 1) for word in ("multiplies", f"sends {n}")]
    waits = [f"waits for {n}" for n in range(1, chunks + 1)]
    assert transport.log == [*each, *waits]


def test_outputs_have_the_format_of_their_product_and_the_whole_that_of_the_input():
    shard = numbers(B, 5, D)
    products = lambda x: [x.sum(-1, keepdim=True).float(), x.to(torch.float16)]  # noqa: E731
    kept, outputs = gather_and_multiply(shard, Log(), 2, products, keep=True)
    assert [one.dtype for one in (kept, *outputs)] == [torch.float64, torch.float32, torch.float16]
    assert torch.equal(outputs[0], whole(shard).sum(-1, keepdim=True).float())


def test_at_least_one_chunk():
    with pytest.raises(ValueError, match="chunks must be at least 1, not 0"):
        Sharded(None, chunks=0)
