"""Which gradients go together."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.parallel.ddp.buckets import assign

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
        assert sum(sizes[:-1]) < limit  # nobody was let in after it was full
        if place + 1 < len(buckets):
            follower = tensors[buckets[place + 1][0]]
            assert sum(sizes) >= limit or follower.dtype != tensors[bucket[0]].dtype
