"""The hand-written backward of a layer beside autograd's, with parts that are frozen."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.comm.ledger import ledger
from helpers.comm.transport import GroupTransport
from helpers.parallel.tensor.chunks import pieces
from helpers.parallel.tensor.layers import Column, ColumnParallel, RowParallel
from helpers.parallel.tensor.regions import Sharded, Whole
from helpers.parallel.tensor.vocabulary import VocabularyCrossEntropy, VocabularyEmbedding
from helpers.runtime.cluster import Cluster

B, T, D, F = 3, 8, 6, 4
REGIONS = {
    "whole": Whole,
    "sharded": Sharded,
    "sharded, kept": lambda transport: Sharded(transport, again=False),
    "chunks": lambda transport: Sharded(transport, chunks=3),
    "more chunks than tokens": lambda transport: Sharded(transport, again=False, chunks=50),
}


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2, device="cpu") as made:
        yield made


def made(seed, *shape, rank=0):
    drawn = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(*shape, generator=drawn, dtype=torch.float64)


def gradients(worker, region, overlap, wanted):
    """Outputs and gradients of column-parallel layers and a row-parallel one after them."""
    around = REGIONS[region](GroupTransport())
    x = made(0, B, T, D)[:, around.own(T)].clone()  # this rank's tokens; all of them if whole
    linears = [nn.Linear(D, F, bias=bias, dtype=torch.float64) for bias in (True, False)]
    down = nn.Linear(F, D, dtype=torch.float64)
    for number, linear in enumerate((*linears, down)):
        linear.weight.data = made(number + 1, *linear.weight.shape, rank=worker.rank)
        if linear.bias is not None:  # columns have their own, the row's bias is whole
            own = 0 if linear is down else worker.rank
            linear.bias.data = made(number + 9, *linear.bias.shape, rank=own)
    leaves = [x, linears[0].weight, linears[0].bias, linears[1].weight, down.weight]
    for leaf, wants in zip(leaves, wanted, strict=True):
        leaf.requires_grad_(wants)
    one, two = ColumnParallel(around, overlap)(x, *linears)
    y = RowParallel(down, around, overlap)(one.tanh() * two)
    (y * made(7, B, T, D)[:, around.own(T)]).sum().backward()
    return [y.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("region", REGIONS)
def test_overlapping_changes_no_gradient_whatever_is_frozen(cluster, region):
    def both(worker):
        worst = 0.0
        for wanted in product([True, False], repeat=5):
            if not any(wanted):
                continue
            ours, plain = (gradients(worker, region, overlap, wanted) for overlap in (True, False))
            for a, b in zip(ours, plain, strict=True):
                assert (a is None) == (b is None), (region, wanted)
                if a is not None:
                    assert a.shape == b.shape
                    worst = max(worst, (a - b).abs().max().item())
        return worst

    assert max(cluster.run(both)) < 1e-12


@pytest.mark.parametrize("region", REGIONS)
def test_the_layers_are_the_whole_matrices(cluster, region):
    """Two ranks' columns and rows, side by side, on one process."""

    def run(worker):
        return gradients(worker, region, True, [True] * 5)

    runs = list(cluster.run(run))
    x = made(0, B, T, D).requires_grad_()
    up = [torch.cat([made(n, F, D, rank=r) for r in range(2)]) for n in (1, 2)]
    bias = torch.cat([made(9, F, rank=r) for r in range(2)])
    down = torch.cat([made(3, D, F, rank=r) for r in range(2)], 1)
    for leaf in (*up, bias, down):
        leaf.requires_grad_()
    hidden = functional.linear(x, up[0], bias).tanh() * functional.linear(x, up[1])
    y = functional.linear(hidden, down, made(11, D))
    (y * made(7, B, T, D)).sum().backward()
    same = lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-12)  # noqa: E731
    for rank, (ours, of_x, *of_weights) in enumerate(runs):
        tokens = slice(0, T) if region == "whole" else slice(rank * T // 2, (rank + 1) * T // 2)
        same(ours, y.detach()[:, tokens])
        same(of_x, x.grad[:, tokens])
        rows = slice(rank * F, (rank + 1) * F)
        for found, expected in zip(
            of_weights, (up[0].grad[rows], bias.grad[rows], up[1].grad[rows], down.grad[:, rows]),
            strict=True,
        ):  # fmt: skip
            same(found, expected)


def test_frozen_weights_save_the_second_gather(cluster):
    def calls(worker, wants):
        linear = nn.Linear(D, F)
        linear.requires_grad_(wants)
        x = torch.ones(B, T // 2, D, requires_grad=True)
        (y,) = ColumnParallel(Sharded(GroupTransport()))(x, linear)
        with ledger() as log:
            y.sum().backward()
        return [entry.call for entry in log.entries]

    def with_a_bias(worker):
        linear = nn.Linear(D, F)
        linear.weight.requires_grad_(False)
        x = torch.ones(B, T // 2, D, requires_grad=True)
        (y,) = ColumnParallel(Sharded(GroupTransport()))(x, linear)
        with ledger() as log:
            y.sum().backward()
        assert linear.bias.grad.tolist() == [B * T] * F
        return [entry.call for entry in log.entries]

    assert cluster.run(with_a_bias)[0] == ["all_to_all"]  # a bias needs no input
    assert cluster.run(calls, wants=True)[0] == ["all_gather", "all_to_all"]
    assert cluster.run(calls, wants=False)[0] == ["all_to_all"]


def test_an_embedding_by_vocabulary_is_the_whole_one(cluster):
    vocab, tokens = 7, torch.tensor([[0, 3, 4, 6, 3], [6, 6, 1, 0, 5]])
    table, weight = made(6, vocab, D), made(8, 2, 5, D)

    def run(worker):
        own = slice(0, 4) if worker.rank == 0 else slice(4, 7)
        plain = nn.Embedding(vocab, D, dtype=torch.float64)
        plain.weight = nn.Parameter(table[own].clone())
        embedding = VocabularyEmbedding(plain, own.start, Whole(GroupTransport()))
        vectors = embedding(tokens)
        (vectors * weight).sum().backward()
        return vectors.detach(), embedding.weight.grad

    whole = table.clone().requires_grad_()
    expected = functional.embedding(tokens, whole)
    (expected * weight).sum().backward()
    runs = list(cluster.run(run))
    for vectors, _ in runs:
        assert torch.equal(vectors, expected.detach())
    torch.testing.assert_close(torch.cat([run[1] for run in runs]), whole.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("token", [-1, 7])
def test_a_token_that_no_rank_has_is_refused_before_any_message(token):
    odd, nowhere = torch.tensor([[0, token]]), Whole(None)
    with pytest.raises(RuntimeError, match="a token is outside the vocabulary of 7"):
        VocabularyEmbedding(nn.Embedding(7, D), 0, nowhere)(odd)
    with pytest.raises(RuntimeError, match="a target is outside the vocabulary of 7"):
        VocabularyCrossEntropy(0, 7, None)(torch.randn(1, 2, 7), odd)


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_the_loss_of_large_logits_is_finite(cluster, size):
    """exp(1e4) is infinite; the largest logit of all ranks is subtracted first."""
    vocab = 7
    logits, targets = size * made(5, B, T, vocab), torch.arange(B * T).view(B, T) % vocab
    targets[0, 0] = -100

    def loss(worker):
        own = slice(0, 4) if worker.rank == 0 else slice(4, 7)
        mine = logits[..., own].clone().requires_grad_()
        criterion = VocabularyCrossEntropy(own.start, vocab, GroupTransport())
        total, count = criterion(mine, targets)
        total.backward()
        return total.detach(), int(count), mine.grad

    whole = logits.clone().requires_grad_()
    expected = functional.cross_entropy(
        whole.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    expected.backward()
    runs = list(cluster.run(loss))
    for total, count, _ in runs:
        assert count == B * T - 1
        torch.testing.assert_close(total, expected.detach(), rtol=1e-13, atol=1e-12)
    torch.testing.assert_close(
        torch.cat([run[2] for run in runs], -1), whole.grad, rtol=0, atol=1e-12
    )


def test_what_the_regions_say_of_themselves():
    """With shards of the tokens, a replicated parameter's gradient is a partial sum."""
    assert (Whole(None).keeps_whole, Whole(None).partial) == (True, False)
    for again in (True, False):
        region = Sharded(None, again=again, chunks=2)
        assert (region.keeps_whole, region.partial, region.chunks) == (not again, True, 2)
    assert (Sharded(None).keeps_whole, Sharded(None).chunks) == (False, 1)


def test_pieces_are_equal_and_none_is_empty():
    assert pieces(6, 4) == [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 6)]
    assert pieces(2, 50) == [slice(0, 1), slice(1, 2)]
    assert pieces(0, 3) == [slice(0, 0)]
    with pytest.raises(ValueError, match="chunks must be at least 1"):
        Sharded(None, chunks=0)


class Alone:
    size = 1


@pytest.mark.parametrize("bias", [True, False])
def test_a_column_parallel_module_of_its_own_has_its_bias_and_its_hooks(bias):
    linear, ran = nn.Linear(D, F, bias=bias, dtype=torch.float64), []
    column = Column(linear, ColumnParallel(Whole(Alone)))
    assert column.weight is linear.weight
    assert column.bias is linear.bias
    column.register_forward_hook(lambda *_: ran.append(1))
    x = made(0, B, T, D)
    torch.testing.assert_close(column(x), linear(x), rtol=0, atol=1e-12)
    assert ran == [1]


def test_without_overlap_each_linear_module_is_called_so_that_its_hooks_run():
    linears, ran = [nn.Linear(D, F, dtype=torch.float64) for _ in range(2)], []
    for number, linear in enumerate(linears):
        linear.register_forward_hook(lambda *_, number=number: ran.append(number))
    x = made(0, B, T, D)
    found = ColumnParallel(Whole(Alone), overlap=False)(x, *linears)
    assert ran == [0, 1]
    assert all(map(torch.equal, found, [functional.linear(x, o.weight, o.bias) for o in linears]))


class Noted:
    """A region of one rank that gathers again. It notes what begins, and what is waited for."""

    keeps_whole = False

    def __init__(self):
        self.log, self.kept = [], []

    def begin(self, name, result):
        self.log.append(f"begins {name}")
        wait = lambda: (self.log.append(f"waits for {name}"), result)[1]  # noqa: E731
        return SimpleNamespace(wait=wait)

    def inward(self, x):
        return self.begin("gather", x)

    def multiply_in(self, x, products, keep):
        self.kept.append(keep)
        return (x if keep else None), products(x)

    def multiply_out(self, inputs, product):
        return self.begin("sum", product(inputs))


def test_the_backward_waits_for_its_sum_last():
    """The input is on its way first. The weights' gradients need it, and no sum."""
    region, linear = Noted(), nn.Linear(D, F, dtype=torch.float64)
    x = made(0, B, T, D).requires_grad_()
    ColumnParallel(region)(x, linear)[0].sum().backward()
    assert region.log == ["begins gather", "begins sum", "waits for gather", "waits for sum"]


def test_a_frozen_row_keeps_no_whole_gradient():
    for wants in (True, False):
        region, linear = Noted(), nn.Linear(F, D, bias=False, dtype=torch.float64)
        linear.weight.requires_grad_(wants)
        RowParallel(linear, region)(made(0, B, T, F).requires_grad_()).sum().backward()
        assert region.kept == [wants]
