"""What all replicas share: the start, buffers, `no_sync`, and refusals before any message."""

import pytest
import torch
from torch import nn

from helpers.parallel.ddp.after_backward import BucketedDDP, NaiveDDP
from helpers.parallel.ddp.overlapped import DDP
from helpers.parallel.ddp.replicas import UnusedParameters
from helpers.runtime.launch import launch
from tests.parallel.ddp.modules import Alone, Third, added_in_two_steps, data, make

pytestmark = pytest.mark.usefixtures("kept_ranks")
every_kind = pytest.mark.parametrize(
    "replica", [NaiveDDP, BucketedDDP, DDP], ids=["naive", "bucketed", "overlapped"]
)


def backward(ddp):
    x, y = data(12, 0)
    nn.functional.mse_loss(ddp(x), y).backward()


def own_copies(worker):
    """Buffers and frozen parameters are rank 0's too; gradients are views into the buckets."""
    ddp = DDP(make("tied", seed=worker.rank))
    backward(ddp)
    ddp.synchronize()
    flat = {b.flat.untyped_storage().data_ptr() for b in ddp.buckets}
    in_buckets = all(p.grad.untyped_storage().data_ptr() in flat for p in ddp.trained().values())
    return {
        "in_buckets": in_buckets,
        "numbers": sum(b.flat.numel() for b in ddp.buckets),
        "names": [n for b in ddp.buckets for n in b.parameters],
        "state": ddp.module.state_dict(),
    }


def test_the_start_is_rank_0_s_and_gradients_are_views():
    right = make("tied", seed=0).state_dict()
    for run in launch(own_copies, 3, device="cpu"):
        assert run["in_buckets"]
        assert run["numbers"] == 7 * 7 + 7 + 7 + 7 * 3 + 3  # tied weight: once; frozen: never
        assert all(torch.equal(run["state"][name], right[name]) for name in right)


def running_mean(worker, **options):
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    ddp = DDP(module, **options)
    means = []
    for step in range(2):
        ddp.zero_grad()
        x = torch.full((4, 3), float(worker.rank + step), dtype=torch.float64)
        ddp(x).sum().backward()
        ddp.synchronize()
        means.append(module[0].running_mean.clone())
    ddp.eval()
    ddp(x)  # sends nothing, and changes nothing
    return means


def test_buffers_drift_apart_unless_they_are_broadcast():
    first, second = launch(running_mean, 2, device="cpu")
    assert not torch.equal(first[0], second[0])
    first, second = launch(running_mean, 2, device="cpu", broadcast_buffers=True)
    # each forward starts with rank 0's buffers, and then adds this rank's own data
    assert torch.equal(first[1] - 0.1 * 1, second[1] - 0.1 * 2)


@every_kind
def test_nothing_to_train_is_said(replica):
    with pytest.raises(ValueError, match="nothing to train: no parameter of the module"):
        replica(nn.Linear(2, 2).requires_grad_(False), Alone(), same=True)


@every_kind
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_sparse_gradients_and_graphs_are_refused(replica):
    def sparse():
        ddp = replica(nn.Embedding(5, 3, sparse=True), Alone(), same=True)
        ddp(torch.tensor([1, 2])).sum().backward()
        ddp.synchronize()

    def with_graph():
        ddp = replica(nn.Linear(3, 1), Alone(), same=True)
        ddp(torch.ones(1, 3)).square().sum().backward(create_graph=True)
        ddp.synchronize()

    with pytest.raises(NotImplementedError, match="the gradient of weight is sparse"):
        sparse()
    with pytest.raises(NotImplementedError, match=r"has a graph.*torch.autograd.grad"):
        with_graph()


@every_kind
def test_no_sync_lasts_to_the_end_of_the_outer_block(replica):
    ddp = replica(make("plain", 0), Alone(), same=True)
    with ddp.no_sync():
        with ddp.no_sync():
            pass
        assert not ddp.syncing
    assert ddp.syncing
    with pytest.raises(KeyError), ddp.no_sync():
        raise KeyError
    assert ddp.syncing
    ddp.close()


TINY = {"bucket_cap_mb": 200 / 2**20}  # 25 numbers in float64
SMALL = TINY | {"first_bucket_mb": 50 / 2**20}
SENT = [  # which message added to each gradient: of 91, 13, 65, 5 and 15 numbers
    (NaiveDDP, {}, (1, 2, 3, 4, 5)),
    (BucketedDDP, TINY, (1, 2, 2, 3, 3)),
    (BucketedDDP, {}, (1, 1, 1, 1, 1)),
    (DDP, SMALL, (3, 3, 2, 2, 1)),
    (DDP, {}, (1, 1, 1, 1, 1)),
]


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(("replica", "options", "messages"), SENT)
def test_each_gradient_is_sent_once_in_a_step(replica, options, messages, average):
    """Of two micro-batches. Gradients are averaged, unless told."""
    first, second = added_in_two_steps(replica, average, **options)
    assert list(first.values()) == [{k} for k in messages]
    assert list(second.values()) == [{k + max(messages)} for k in messages]


@every_kind
def test_a_gradient_is_divided_before_it_is_sent(replica):
    """After the sum, a low-precision gradient might be infinite already."""
    for average, sent in ((True, {1, 2, 3}), (False, {3, 6, 9})):
        transport = Third()
        ddp = replica(nn.Linear(2, 1), transport, same=True, average=average)
        ddp.module.weight.grad, ddp.module.bias.grad = (
            torch.tensor([[3.0, 6.0]]),
            torch.tensor([9.0]),
        )
        ddp.synchronize()
        assert {
            number for message in transport.sent for number in message.flatten().tolist()
        } == sent
        ddp.close()


@every_kind
def test_frozen_parameters_are_left_out_and_unused_ones_are_named_before_any_message(replica):
    transport = Third()
    module = make("branching", 0)
    module.stem.requires_grad_(False)
    ddp = replica(module, transport, same=True)
    for name, p in module.named_parameters():
        p.grad = None if name in ("left.bias", "head.weight") else torch.ones_like(p)
    with pytest.raises(UnusedParameters, match=r"rank 1 for head\.weight, left\.bias\. If"):
        ddp.synchronize()
    assert transport.sent == []
    for p in ddp.trained().values():
        p.grad = torch.ones_like(p)
    ddp.synchronize()
    gradients = [message for message in transport.sent if message.is_floating_point()]
    assert sum(message.numel() for message in gradients) == 15 + 3 + 3 * (25 + 5)
    assert module.stem.bias.grad.tolist() == [1] * 5
    ddp.close()


def test_a_bucket_has_25_mib_unless_told():
    module = nn.ParameterList(torch.empty(mib * 2**18) for mib in (24, 1, 1))
    for options, sizes in (
        ({}, [2, 1]),
        ({"bucket_cap_mb": 24}, [1, 2]),
        ({"bucket_cap_mb": 26}, [3]),
    ):
        ddp = BucketedDDP(module, Alone(), same=True, **options)
        assert [len(bucket.parameters) for bucket in ddp.buckets] == sizes


class Asked(nn.Linear):
    """Notes what it is called with."""

    def forward(self, *inputs, **kwargs):
        self.given = inputs, kwargs
        return "its result"


@every_kind
def test_a_call_is_the_module_s_with_all_arguments(replica):
    ddp = replica(Asked(2, 1), Alone(), same=True)
    assert ddp(1, 2, mask=3, scale=4) == "its result"
    assert ddp.module.given == ((1, 2), {"mask": 3, "scale": 4})
    ddp.close()


class Counting(Alone):
    """Count the messages from rank 0."""

    sent = 0

    def broadcast(self, buffer, source=0):
        self.sent += 1


def test_buffers_are_sent_before_a_training_forward_outside_of_no_sync():
    transport = Counting()
    ddp = DDP(nn.BatchNorm1d(7), transport, same=True, broadcast_buffers=True)
    for training, synced, sent in ((True, True, True), (True, False, False), (False, True, False)):
        ddp.train(training).syncing, before = synced, transport.sent
        ddp(data(4, 0)[0].float())
        assert (transport.sent > before) == sent
    ddp.close()


def test_at_most_eight_unused_parameters_are_named():
    ddp, names = DDP(make("plain", 0), Alone(), same=True), [f"p{k}" for k in range(10)]
    ddp.refuse_unused([])
    with pytest.raises(UnusedParameters, match=r"on rank 0 for p0, .*, p7\. If the loss"):
        ddp.refuse_unused(names[:8])
    with pytest.raises(UnusedParameters, match=r"p7 and 2 more\. If the loss"):
        ddp.refuse_unused(iter(names))
    ddp.close()
    with pytest.raises(UnusedParameters, match=r"on rank 1 for p9\. If"):
        NaiveDDP(nn.Linear(2, 1), Third(), same=True).refuse_unused(names[9:])


class Strided(nn.Module):
    """Parameters with the strides of channels-last images or transposed matrices."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.matrix = nn.Parameter(torch.randn(5, 16).T / 4)

    def forward(self, x):
        return torch.tanh(self.conv(x)).flatten(1) @ self.matrix


def trains_strided(worker, replica):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    twin = Strided().double()
    torch.manual_seed(0)
    ddp = replica(Strided().double())
    assert not ddp.module.matrix.is_contiguous()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True) for m in (twin, ddp)]
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(2 * worker.world_size, 3, 4, 4, generator=generator, dtype=torch.float64)
        for optimizer in optimizers:
            optimizer.zero_grad()
        twin(x).square().mean().backward()
        ddp(x.chunk(worker.world_size)[worker.rank]).square().mean().backward()
        ddp.synchronize()
        for optimizer in optimizers:
            optimizer.step()
    pairs = zip(ddp.module.parameters(), twin.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@every_kind
def test_strides_are_kept_for_fused_optimizers(replica):
    for far in launch(trains_strided, 2, device="cpu", replica=replica):
        assert far < 1e-12
