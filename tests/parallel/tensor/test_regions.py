"""The messages around a layer, on three ranks that are threads."""

import pytest
import torch

from helpers.parallel.tensor.regions import Sharded, Whole
from tests.parallel.threads import Ranks, Transport

RANKS, B, T, D, F = 3, 2, 15, 4, 6


def made(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens_of(rank):
    return slice(rank * T // RANKS, (rank + 1) * T // RANKS)


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def on_threads(function, ranks=RANKS):
    """Call `function(transport)` on each rank; results and words of the messages."""
    together = Ranks(ranks)

    def one(rank):
        transport = Transport(together, rank)
        return function(transport), transport.log

    return together.run(one)


def both(region, kind, x):
    """One way through a region, and its gradient for a gradient of ones, twos, threes."""

    def one(transport):
        own = x[transport.rank].clone().requires_grad_()
        y = getattr(region(transport), kind)(own)
        y.backward(made(9 + transport.rank, *y.shape))
        assert torch.equal(own, x[transport.rank])
        return y.detach(), own.grad

    return on_threads(one)


def test_whole_activations_enter_as_they_are_and_their_gradients_are_summed():
    x = [made(0, B, T, D)] * RANKS
    total = sum(made(9 + rank, B, T, D) for rank in range(RANKS))
    for (y, gradient), log in both(Whole, "enter", x):
        assert torch.equal(y, x[0])
        same(gradient, total)
        assert log == ["all_reduce"]


def test_partial_sums_leave_as_their_sum_and_gradients_pass():
    x = [made(rank, B, T, D) for rank in range(RANKS)]
    for rank, ((y, gradient), log) in enumerate(both(Whole, "leave", x)):
        same(y, x[0] + x[1] + x[2])
        assert torch.equal(gradient, made(9 + rank, B, T, D))
        assert log == ["all_reduce"]


def test_shards_enter_side_by_side_and_gradients_are_summed_and_cut():
    x = [made(rank, B, T // RANKS, D) for rank in range(RANKS)]
    total = sum(made(9 + rank, B, T, D) for rank in range(RANKS))
    for rank, ((y, gradient), log) in enumerate(both(Sharded, "enter", x)):
        assert torch.equal(y, torch.cat(x, 1))
        same(gradient, total[:, tokens_of(rank)])
        assert log == ["all_gather", "reduce_scatter"]


def test_partial_sums_leave_as_shards_of_the_sum_and_gradients_are_gathered():
    x = [made(rank, B, T, D) for rank in range(RANKS)]
    whole = torch.cat([made(9 + rank, B, T // RANKS, D) for rank in range(RANKS)], 1)
    for rank, ((y, gradient), log) in enumerate(both(Sharded, "leave", x)):
        same(y, sum(x)[:, tokens_of(rank)])
        assert torch.equal(gradient, whole)
        assert log == ["reduce_scatter", "all_gather"]


def test_without_autograd_a_result_is_begun_and_waited_for_later():
    def whole(transport):
        region, x, partial = Whole(transport), made(0, B, T, D), made(transport.rank, B, T, D)
        assert region.inward(x).wait() is x
        coming = region.outward(partial)
        assert partial.isnan().all()  # on its way, in the memory of the partial sums
        assert coming.wait() is partial
        return partial

    total = sum(made(rank, B, T, D) for rank in range(RANKS))
    for found, log in on_threads(whole):
        same(found, total)
        assert log == ["all_reduce"]

    def sharded(transport):
        region = Sharded(transport)
        inward = region.inward(made(transport.rank, B, T // RANKS, D))
        partial = made(transport.rank, B, T, D)
        outward = region.outward(partial)
        assert torch.equal(partial, made(transport.rank, B, T, D))
        return inward.wait(), outward.wait()

    shards = torch.cat([made(rank, B, T // RANKS, D) for rank in range(RANKS)], 1)
    for rank, ((inward, outward), log) in enumerate(on_threads(sharded)):
        assert torch.equal(inward, shards)
        same(outward, total[:, tokens_of(rank)])
        assert log == ["all_gather", "reduce_scatter"]


REGIONS = {
    "whole": (Whole, 1),
    "sharded": (Sharded, 1),
    "two chunks": (lambda transport: Sharded(transport, chunks=2), 2),
    "more chunks than tokens": (lambda transport: Sharded(transport, False, 9), T // RANKS),
}


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("region", REGIONS)
def test_products_of_what_enters_and_what_leaves(region, keep):
    """With chunks: as many messages, and the same numbers."""
    make, messages = REGIONS[region]
    weights = made(1, D, F), made(2, D, 3)
    whole = torch.cat([made(20 + rank, B, T // RANKS, D) for rank in range(RANKS)], 1)

    def one(transport):
        around = make(transport)
        x = whole[:, around.own(T)].clone()
        sizes = []

        def products(part):
            sizes.append(part.shape[1])
            return [part @ weight for weight in weights]

        kept, outputs = around.multiply_in(x, products, keep=keep)
        inputs = [made(30 + transport.rank, B, T, F), made(40 + transport.rank, B, T, 3)]
        product = lambda parts: sum(p @ w.t() for p, w in zip(parts, weights, strict=True))  # noqa: E731
        return kept, outputs, around.multiply_out(inputs, product).wait(), sizes

    left = sum(
        made(30 + rank, B, T, F) @ weights[0].t() + made(40 + rank, B, T, 3) @ weights[1].t()
        for rank in range(RANKS)
    )
    for rank, ((kept, outputs, out, sizes), log) in enumerate(on_threads(one)):
        own = slice(0, T) if region == "whole" else tokens_of(rank)
        assert torch.equal(kept, whole) if keep else kept is None
        for output, weight in zip(outputs, weights, strict=True):
            same(output, whole @ weight)
        same(out, left[:, own])
        assert (sum(sizes), len(sizes)) == (T, messages)
        into = [] if region == "whole" else ["all_gather"] * messages
        assert log == into + ["all_reduce" if region == "whole" else "reduce_scatter"] * messages


def test_one_rank_and_an_empty_batch_need_no_message():
    def one(transport):
        around = Sharded(transport, chunks=4)
        x = made(0, 2 if transport.size == 1 else 0, 2, D)
        if transport.size > 1:
            nothing = made(0, 2, 0, D)
            kept, (y,) = around.multiply_in(nothing, lambda whole: [2 * whole], keep=True)
            assert kept.shape == y.shape == around.multiply_out([y], sum).wait().shape == (2, 0, D)
        kept, (y,) = around.multiply_in(x, lambda whole: [2 * whole], keep=True)
        z = around.multiply_out([y], lambda parts: 3 * parts[0]).wait()
        return x, kept, y, z

    [((x, kept, y, z), log)] = on_threads(one, ranks=1)
    assert torch.equal(kept, x)
    assert torch.equal(y, 2 * x)
    assert torch.equal(z, 6 * x)
    assert log == []
    for (_, kept, y, z), log in on_threads(one):
        assert kept.shape == y.shape == (0, 2 * RANKS, D)
        assert z.shape == (0, 2, D)
        assert log == []


class Seat:
    def __init__(self, size, rank):
        self.size, self.rank = size, rank


def test_which_tokens_a_rank_has():
    assert Whole(Seat(3, 1)).own(7) == slice(0, 7)
    assert [Sharded(Seat(3, rank)).own(12) for rank in range(3)] == [
        slice(0, 4), slice(4, 8), slice(8, 12),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="7 tokens do not divide over 3 ranks"):
        Sharded(Seat(3, 0)).own(7)


def test_what_the_regions_say_of_themselves():
    """With shards of the tokens, a replicated parameter's gradient is a partial sum."""
    seat = Seat(2, 0)
    assert (Whole(seat).keeps_whole, Whole(seat).partial) == (True, False)
    for again in (True, False):
        region = Sharded(seat, again, 5)
        assert (region.keeps_whole, region.partial, region.chunks) == (not again, True, 5)
        assert region.transport is seat
    assert (Sharded(seat).keeps_whole, Sharded(seat).chunks) == (False, 1)
    assert not hasattr(Whole, "chunks")
    assert Whole(seat).transport is seat
    for chunks in (0, -1):
        with pytest.raises(ValueError, match=f"chunks must be at least 1, not {chunks}"):
            Sharded(seat, chunks=chunks)
