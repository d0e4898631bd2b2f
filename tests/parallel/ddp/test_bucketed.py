"""One message for each bucket after the backward, with gradients divided before it is sent."""

import pytest
import torch

from helpers.parallel.ddp.bucketed import BucketedDDP
from helpers.parallel.ddp.replicas import UnusedParameters
from tests.parallel.ddp.modules import Alone, Third, added_in_two_steps, make

TINY = 200 / 2**20  # 25 numbers in float64


@pytest.mark.parametrize("average", [True, False])
def test_each_bucket_is_sent_once_in_a_step(average):
    """91 numbers fill a bucket; so do 13 and 65; 5 and 15 are left."""
    first, second = added_in_two_steps(BucketedDDP, average, bucket_cap_mb=TINY)
    assert list(first.values()) == [{k} for k in (1, 2, 2, 3, 3)]
    assert list(second.values()) == [{k} for k in (4, 5, 5, 6, 6)]
    first, second = added_in_two_steps(BucketedDDP, average)
    assert [*first.values(), *second.values()] == 5 * [{1}] + 5 * [{2}]


def test_a_bucket_has_its_gradients_side_by_side_divided():
    transport = Third()
    ddp = BucketedDDP(torch.nn.Linear(2, 1), transport, same=True)
    ddp.module.weight.grad, ddp.module.bias.grad = torch.tensor([[3.0, 6.0]]), torch.tensor([9.0])
    ddp.synchronize()
    assert [message.tolist() for message in transport.sent] == [[1, 2, 3]]
    assert ddp.module.weight.grad.tolist() == [[2, 3]]
    assert ddp.module.bias.grad.tolist() == [4]


def test_a_bucket_has_25_mib_unless_told():
    def sizes(**options):
        module = torch.nn.ParameterList(torch.empty(mib * 2**18) for mib in (24, 1, 1))
        return [
            len(b.parameters) for b in BucketedDDP(module, Alone(), same=True, **options).buckets
        ]

    assert sizes() == [2, 1]
    assert sizes(bucket_cap_mb=24) == [1, 2]
    assert sizes(bucket_cap_mb=26) == [3]


def test_frozen_parameters_are_left_out_and_unused_ones_are_named_before_any_message():
    transport, module = Third(), make("branching", 0)
    module.stem.requires_grad_(False)
    ddp = BucketedDDP(module, transport, same=True, bucket_cap_mb=TINY)
    for name, p in module.named_parameters():
        p.grad = None if name in ("left.bias", "head.weight") else torch.ones_like(p)
    with pytest.raises(UnusedParameters, match=r"rank 1 for head\.weight, left\.bias\. If"):
        ddp.synchronize()
    assert transport.sent == []
    for p in ddp.trained().values():
        p.grad = torch.ones_like(p)
    ddp.synchronize()
    assert sum(message.numel() for message in transport.sent) == 15 + 3 + 3 * (25 + 5)
    assert module.stem.bias.grad.tolist() == [1] * 5


def test_a_sparse_gradient_is_refused():
    ddp = BucketedDDP(torch.nn.Embedding(5, 3, sparse=True), Third(), same=True)
    ddp(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(NotImplementedError, match="the gradient of weight is sparse"):
        ddp.synchronize()
