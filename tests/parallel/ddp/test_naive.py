"""One message for each gradient, in order, divided before it is sent."""

import pytest
import torch

from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.replicas import UnusedParameters
from tests.parallel.ddp.modules import Third, added_in_two_steps, make


@pytest.mark.parametrize("average", [True, False])
def test_each_gradient_is_sent_once_in_a_step(average):
    first, second = added_in_two_steps(NaiveDDP, average)
    assert list(first.values()) == [{k} for k in (1, 2, 3, 4, 5)]
    assert list(second.values()) == [{k} for k in (6, 7, 8, 9, 10)]


def test_a_gradient_is_divided_before_it_is_sent():
    """After the sum, a low-precision gradient might be infinite already."""
    transport = Third()
    ddp = NaiveDDP(torch.nn.Linear(2, 1, bias=False), transport, same=True)
    ddp.module.weight.grad = torch.tensor([[3.0, 6.0]])
    ddp.synchronize()
    assert transport.sent[0].tolist() == [[1, 2]]
    assert ddp.module.weight.grad.tolist() == [[2, 3]]


def test_frozen_parameters_are_left_out_and_unused_ones_are_named_before_any_message():
    transport = Third()
    ddp = NaiveDDP(make("branching", 0), transport, same=True)
    ddp.module.stem.requires_grad_(False)
    for name, p in ddp.module.named_parameters():
        p.grad = None if name in ("left.bias", "head.weight") else torch.ones_like(p)
    with pytest.raises(UnusedParameters, match=r"rank 1 for head\.weight, left\.bias\. If"):
        ddp.synchronize()
    assert transport.sent == []
    for p in ddp.trained().values():
        p.grad = torch.ones_like(p)
    ddp.synchronize()
    assert len(transport.sent) == 8
    assert ddp.module.stem.bias.grad.tolist() == [1] * 5


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_sparse_gradients_and_graphs_are_refused():
    sparse = NaiveDDP(torch.nn.Embedding(5, 3, sparse=True), Third(), same=True)
    sparse(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(NotImplementedError, match="the gradient of weight is sparse"):
        sparse.synchronize()
    graph = NaiveDDP(torch.nn.Linear(3, 1), Third(), same=True)
    graph(torch.ones(1, 3)).square().sum().backward(create_graph=True)
    with pytest.raises(NotImplementedError, match="the gradient of weight has a graph"):
        graph.synchronize()
