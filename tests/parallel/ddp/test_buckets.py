"""Gradients are assigned to buckets, and copied into them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.parallel.ddp.buckets import Bucket, assign

DTYPES = (torch.float32, torch.bfloat16)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(DTYPES)), max_size=30),
    st.integers(1, 300),
    st.none() | st.integers(1, 100),
)
def test_every_tensor_once_in_order_and_no_bucket_wasted(shapes, cap, first_cap):
    tensors = [torch.empty(n, dtype=dtype) for n, dtype in shapes]
    buckets = assign(tensors, cap, first_cap)
    assert [i for bucket in buckets for i in bucket] == list(range(len(tensors)))
    for place, bucket in enumerate(buckets):
        assert bucket
        assert len({tensors[i].dtype for i in bucket}) == 1
        limit = first_cap if place == 0 and first_cap is not None else cap
        sizes = [tensors[i].nbytes for i in bucket]
        assert sum(sizes[:-1]) < limit  # a full bucket gets no more tensors
        if place + 1 < len(buckets):
            follower = tensors[buckets[place + 1][0]]
            assert sum(sizes) >= limit or follower.dtype != tensors[bucket[0]].dtype


def test_an_example():
    sizes = [(4, "cpu"), (6, "cpu"), (9, "cpu"), (1, "cpu"), (1, "meta"), (9, "meta"), (1, "meta")]
    tensors = [torch.empty(n, device=device) for n, device in sizes]
    assert assign(tensors, cap=40) == [[0, 1], [2, 3], [4, 5], [6]]
    assert assign(tensors, cap=44) == [[0, 1, 2], [3], [4, 5, 6]]  # a device has its own buckets
    for first in (0, 16):
        assert assign(tensors, cap=40, first_cap=first) == [[0], [1, 2], [3], [4, 5], [6]]
    assert assign([], cap=1) == []


class Local:
    """The part of a transport that a new bucket needs."""

    @staticmethod
    def empty(numel, dtype, device):
        return torch.empty(numel, dtype=dtype, device=device)


@pytest.mark.parametrize("scale", [1.0, 1 / 3])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.float64, torch.complex128])
def test_a_gradient_is_scaled_as_by_a_number(dtype, scale):
    parameters = {name: torch.nn.Parameter(torch.randn(1000, dtype=dtype)) for name in "ab"}
    bucket = Bucket(parameters, Local)
    for gradient in (torch.randn(1000, dtype=dtype), None):
        for name, parameter in parameters.items():
            parameter.grad = gradient
            bucket.take(name, scale)
            scaled = torch.zeros(1000, dtype=dtype) if gradient is None else gradient * scale
            assert torch.equal(bucket.views[name], scaled)
            assert parameter.grad is bucket.views[name]
            bucket.take(name, 0.5)  # add to the view, with another scale
            assert torch.equal(bucket.views[name], scaled * 0.5)
    assert not bucket.missing


def test_a_scale_becomes_a_tensor_once():
    """It is used for every gradient of every backward."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    bucket, made = Bucket({"p": parameter}, Local), []
    for scale in (0.5, 0.5, 0.25, 0.25):
        parameter.grad = torch.ones(2)
        bucket.take("p", scale)
        assert parameter.grad.tolist() == [scale, scale]
        made.append(bucket.factor)
    assert made[0] is made[1] is not made[2] is made[3]


class Adding(Local):
    """Another rank sends ones."""

    def all_reduce(self, buffer):
        return Later(buffer)


class Later:
    def __init__(self, buffer):
        self.buffer = buffer

    def wait(self):
        self.buffer += 1


@pytest.mark.parametrize("message_dtype", [None, torch.bfloat16])
def test_a_finished_bucket_has_the_sum_and_waits_for_the_next_backward(message_dtype):
    parameters = {name: torch.nn.Parameter(torch.zeros(2)) for name in "ab"}
    bucket = Bucket(parameters, Adding(), message_dtype)
    for _ in range(2):
        assert bucket.missing == {"a", "b"}
        for name, p in parameters.items():
            p.grad = torch.tensor([1 + 2**-10, 3.0])  # bfloat16 has 8 significant bits
            bucket.take(name)
            bucket.take(name)  # it is there already
        bucket.start()
        bucket.finish()
        for p in parameters.values():
            assert p.grad.dtype == torch.float32
            assert p.grad.tolist() == [2.0 if message_dtype else 2 + 2**-10, 4.0]


class Recording(Local):
    """A transport whose buffers are its own memory."""

    def __init__(self):
        self.made = []

    def empty(self, numel, dtype, device):
        self.made.append(torch.empty(numel, dtype=dtype, device=device))
        return self.made[-1]


def test_a_message_has_memory_of_its_own_only_for_another_dtype():
    parameter = torch.nn.Parameter(torch.zeros(2))
    for dtype, own in ((None, False), (torch.float32, False), (torch.float16, True)):
        transport = Recording()
        bucket = Bucket({"p": parameter}, transport, dtype)
        assert (bucket.message is not bucket.flat) == own
        assert bucket.message.dtype == (dtype or torch.float32)
        made = [bucket.flat, bucket.message] if own else [bucket.flat]
        assert [id(buffer) for buffer in transport.made] == [id(buffer) for buffer in made]


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_gradients_that_a_buffer_cannot_contain_are_refused(scale):
    parameter = torch.nn.Parameter(torch.ones(3))
    bucket = Bucket({"odd": parameter}, Local)
    parameter.grad = torch.ones(3).to_sparse()
    with pytest.raises(NotImplementedError, match="the gradient of odd is sparse"):
        bucket.take("odd", scale)
    parameter.grad = None
    parameter.square().sum().backward(create_graph=True)
    with pytest.raises(NotImplementedError, match="the gradient of odd has a graph"):
        bucket.take("odd", scale)
    assert bucket.missing == {"odd"}


def test_a_view_has_its_parameter_s_strides_in_the_buffer():
    """A fused optimizer reads parameter and gradient at the same places."""
    parameters = {
        "plain": torch.nn.Parameter(torch.randn(3)),
        "transposed": torch.nn.Parameter(torch.randn(5, 16).T),
        "image": torch.nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)),
    }
    bucket = Bucket(parameters, Local)
    for name, p in parameters.items():
        p.grad = torch.randn(p.shape)
        gradient = p.grad
        bucket.take(name)
        assert p.grad.stride() == p.stride()
        assert torch.equal(p.grad, gradient)
    in_memory = [p.grad.as_strided((p.numel(),), (1,)) for p in parameters.values()]
    assert torch.equal(bucket.flat, torch.cat(in_memory))  # side by side, none over another


def test_a_parameter_with_gaps_has_no_place_in_a_bucket():
    gaps = torch.nn.Parameter(torch.randn(4, 6)[:, ::2])
    with pytest.raises(ValueError, match="wide is not dense in memory: its strides are"):
        Bucket({"wide": gaps}, Local)
