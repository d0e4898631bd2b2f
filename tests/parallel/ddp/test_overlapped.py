"""DDP sends early, in the right order and number of bytes, raises errors, and may round."""

import time

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.transport import GroupTransport
from helpers.parallel.ddp.overlapped import DDP
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.parallel.ddp.modules import Alone, Third, data, gradients, make

pytestmark = pytest.mark.usefixtures("kept_ranks")

SMALL = {"bucket_cap_mb": 200 / 2**20, "first_bucket_mb": 50 / 2**20}


def backward(ddp, step=0, rank=0, world=1):
    x, y = data(12, step)
    torch.nn.functional.mse_loss(ddp(x[rank::world]), y[rank::world]).backward()


class Watched(GroupTransport):
    """Record when each all-reduce starts."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def all_reduce(self, buffer):
        self.log.append(("sent", buffer.numel()))
        return super().all_reduce(buffer)


def what_happens_when(worker, replica, options):
    log = []
    ddp = replica(make("plain", 0), Watched(log), **options)
    for step in range(2):
        log.clear()
        for name, p in ddp.module.named_parameters():
            p.register_post_accumulate_grad_hook(lambda _, name=name: log.append(("came", name)))
        ddp.module.zero_grad()
        backward(ddp, step)
        log.append(("backward", "over"))
        ddp.synchronize()
    return {"log": log, "sizes": [sum(v.numel() for v in b.views.values()) for b in ddp.buckets]}


def test_buckets_set_out_in_the_backward_in_reverse_order_of_use():
    runs = launch(what_happens_when, 2, device="cpu", replica=DDP, options=SMALL)
    log, sizes = runs[0]["log"], runs[0]["sizes"]
    # from the last layer to the first, 8 bytes per number; full at 50 bytes, then at 200
    assert sizes == [15, 5 + 65, 13 + 91]
    over = log.index(("backward", "over"))
    sent = [i for i, (what, _) in enumerate(log) if what == "sent"]
    assert [log[i][1] for i in sent] == sizes
    assert max(sent) < over
    # the first bucket was sent before the first layer's gradients were ready
    assert sent[0] < log.index(("came", "layers.0.weight"))


def unused(worker):
    ddp = DDP(make("branching", 0))
    backward(ddp, 0, worker.rank, worker.world_size)
    ddp.synchronize()


def test_an_unused_parameter_is_named_and_no_rank_hangs():
    began = time.monotonic()
    with pytest.raises(WorkerError, match="UnusedParameters") as error:
        launch(unused, 2, device="cpu", timeout=30)
    assert time.monotonic() - began < 20
    assert "never.weight" in str(error.value)
    assert "find_unused_parameters=True" in str(error.value)


def test_a_second_backward_without_no_sync_is_refused():
    ddp = DDP(make("plain", 0), Alone(), same=True)
    backward(ddp)
    ddp.synchronize()
    backward(ddp)
    with pytest.raises(RuntimeError, match="except the last inside no_sync"):
        backward(ddp)
    ddp = DDP(make("plain", 0), Alone(), same=True)
    backward(ddp)
    with pytest.raises(RuntimeError, match=r"a second gradient for layers\.4\.weight before"):
        backward(ddp)  # of the first step


def test_a_backward_after_the_sending_backward_raises():
    ddp = DDP(make("plain", 0), Alone(), same=True)
    backward(ddp)
    with ddp.no_sync(), pytest.raises(RuntimeError, match=r"after a backward that sends"):
        backward(ddp)
    ddp = DDP(make("plain", 0), Alone(), same=True)
    backward(ddp)
    ddp.synchronize()
    backward(ddp)
    with ddp.no_sync(), pytest.raises(RuntimeError, match=r"after a backward that sends"):
        backward(ddp)  # in a later step too, when there are buckets
    ddp.close()


def test_without_hooks_the_caller_reports_each_gradient():
    transport, names = Third(), [name for name, _ in make("plain", 0).named_parameters()]
    ddp = DDP(make("plain", 0), transport, same=True, hooks=False, **SMALL)
    for step in range(2):
        ddp.zero_grad()
        backward(ddp)
        assert not ddp.came
        assert not any(bucket.missing < set(bucket.parameters) for bucket in ddp.buckets)
        for name in names[::-1]:
            ddp.gradient(name, last=False)  # a micro-batch that is not the last
            assert len(transport.sent) == 3 * step
        for done, name in enumerate(names[::-1]):
            ddp.gradient(name, last=True)
            assert len(transport.sent) == 3 * step + step * [1, 1, 2, 2, 3][done]
        ddp.synchronize()
    ddp.close()


def test_a_closed_ddp_leaves_the_gradients_to_the_next():
    module = make("plain", 0)
    first = DDP(module, Alone(), same=True)
    with pytest.raises(
        RuntimeError, match=r"another DDP already reduces the gradient of layers\.0"
    ):
        DDP(module, Alone(), same=True)
    first.close()
    second = DDP(module, Alone(), same=True)
    backward(second)
    assert not first.came
    assert len(second.came) == 5
    first.close()  # again: the second one holds them now
    with pytest.raises(RuntimeError, match="another DDP"):
        DDP(module, Alone(), same=True)


def rounded(worker, message_dtype):
    rank, world = worker.rank, worker.world_size
    exact, lossy = DDP(make("plain", 0)), DDP(make("plain", 0), message_dtype=message_dtype)
    for _ in range(2):  # the first step makes the buckets
        for ddp in (exact, lossy):
            ddp.zero_grad()
            with ledger() as log:
                backward(ddp, 0, rank, world)
                ddp.synchronize()
    pairs = zip(exact.module.parameters(), lossy.module.parameters(), strict=True)
    return {
        "relative": max(((a.grad - b.grad).norm() / a.grad.norm()).item() for a, b in pairs),
        "payload": log.payload,
        "dtype": next(lossy.module.parameters()).grad.dtype,
    }


def test_bf16_messages_are_bounded_and_a_quarter_of_float64():
    # bfloat16 has 8 significant bits: rounding two terms and their sum has an error of at most
    # 3 × 2⁻⁹, relative to the terms. The terms may partly cancel, so the norm may have twice that.
    numbers = sum(p.numel() for p in make("plain", 0).parameters())
    for run in launch(rounded, 2, device="cpu", message_dtype=torch.bfloat16):
        assert 0 < run["relative"] < 6 * 2**-9
        assert run["payload"] == 2 * numbers
        assert run["dtype"] == torch.float64


def in_the_wrong_order(worker):
    """Rank 1's gradients are ready in another order than rank 0's. The sums are still correct."""
    from torch import nn

    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4)).double()
    order = [0, 1, 2, 3] if worker.rank == 0 else [3, 1, 0, 2]
    ddp = DDP(layers, bucket_cap_mb=100 / 2**20, first_bucket_mb=100 / 2**20)
    for _ in range(3):
        ddp.zero_grad()
        x = torch.ones(2, 6, dtype=torch.float64)
        for i in order:
            x = torch.tanh(layers[i](x))
        x.sum().backward()
        ddp.synchronize()
        own = gradients(layers)
    return own


def test_ranks_may_disagree_on_the_order_of_use():
    first, second = launch(in_the_wrong_order, 2, device="cpu")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_buckets_follow_the_backward_and_unused_parameters_are_last_reversed():
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(5))
    ddp = DDP(layers, Alone(), same=True, find_unused_parameters=True)
    layers[3](layers[0](layers[2](torch.ones(1, 2)))).sum().backward()
    ddp.synchronize()
    [bucket] = ddp.buckets
    assert list(bucket.parameters) == [f"{k}.weight" for k in (3, 0, 2, 4, 1)]
    assert [k for k in range(5) if layers[k].weight.grad is None] == [1, 4]
    ddp.close()


def test_buckets_have_the_sizes_of_torch_s_unless_told():
    def caps(**options):
        ddp = DDP(make("plain", 0), Alone(), same=True, **options)
        ddp.close()
        return [cap / 2**20 for cap in ddp.caps]

    assert caps() == [25, 1]
    assert caps(bucket_cap_mb=4) == [4, 4]
    assert caps(first_bucket_mb=3) == [25, 3]
    assert caps(bucket_cap_mb=4, first_bucket_mb=0) == [4, 0]


def test_a_module_that_is_refused_holds_nothing():
    """The first layer is free, the last one is in another DDP."""
    module = make("plain", 0)
    other = DDP(module.layers[4], Alone(), same=True)
    with pytest.raises(RuntimeError, match=r"the gradient of layers\.4\.weight, so"):
        DDP(module, Alone(), same=True)
    DDP(module.layers[0], Alone(), same=True).close()
    other.close()
    DDP(module, Alone(), same=True).close()
