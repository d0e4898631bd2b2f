"""The hand-written backward of a layer beside autograd's, with parts that are frozen."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.comm.ledger import ledger
from helpers.comm.transport import GroupTransport
from helpers.parallel.tensor.layers import Column, ColumnParallel, RowParallel
from helpers.parallel.tensor.regions import Sharded, Whole
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
