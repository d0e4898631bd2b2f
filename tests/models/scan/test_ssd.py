"""Mamba-2's scan in chunks of any size, and one token at a time."""

import pytest
import torch

from helpers.measure.memory import SavedTensors, storages
from helpers.models.scan.selective import selective_scan
from helpers.models.scan.ssd import ssd, ssd_step
from tests.models.scan.oracle import assert_same, dual, dual_inputs, with_gradients

NAMES = ("x", "delta", "A", "B", "C", "D", "h0")


@pytest.mark.parametrize("chunk", [1, 4, 5, 64])
@pytest.mark.parametrize("length", [0, 1, 2, 4, 13])
def test_chunks_of_any_size_give_the_recurrence(length, chunk):
    inputs = dual_inputs(length)

    def ours(*inputs):
        return ssd(*inputs, chunk=chunk)

    assert_same(with_gradients(ours, inputs), with_gradients(dual, inputs))


@pytest.mark.parametrize(
    "sizes",
    [{"groups": 1}, {"groups": 4}, {"heads": 6, "groups": 3}, {"width": 1, "state": 1},
     {"sequences": 1}, {"sequences": 0}],
)  # fmt: skip
def test_groups_and_odd_sizes(sizes):
    inputs = dual_inputs(9, **sizes)

    def ours(*inputs):
        return ssd(*inputs, chunk=4)

    assert_same(with_gradients(ours, inputs), with_gradients(dual, inputs))


def test_chunks_of_64_unless_told():
    inputs = dual_inputs(150, heads=2, width=2, groups=1, state=2)
    assert_same(with_gradients(ssd, inputs), with_gradients(dual, inputs))


def test_a_sequence_shorter_than_a_chunk_needs_no_room_for_one():
    inputs, saved = dual_inputs(5), []
    for chunk in (5, 64):
        saved.append(SavedTensors(dict))
        with saved[-1]:
            ssd(*inputs, chunk=chunk)[0].sum().backward()
    assert saved[0].peak == saved[1].peak > 0


def test_numerical_gradients_and_inputs_that_stay():
    inputs = [t.detach() for t in dual_inputs(5, 1, 2, 2, 1, 2)]
    inputs[1] = inputs[1] + 0.1
    before = [t.clone() for t in inputs]
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(lambda *i: ssd(*i, chunk=2), inputs)
    assert_same(inputs, before)


def test_without_skip_and_first_state():
    x, delta, A, B, C, D, h0 = dual_inputs(7)
    assert_same(ssd(x, delta, A, B, C, chunk=4), dual(x, delta, A, B, C, 0 * D, 0 * h0))


def test_it_is_the_selective_scan_with_one_decay_for_each_head():
    x, delta, A, B, C, D, h0 = dual_inputs(11, groups=1)
    width, state = x.shape[-1], B.shape[-1]
    wide = [
        x.flatten(2), delta.repeat_interleave(width, 2),
        A.repeat_interleave(width)[:, None].expand(-1, state), B[:, :, 0], C[:, :, 0],
        D.repeat_interleave(width), h0.flatten(1, 2),
    ]  # fmt: skip
    y, last = selective_scan(*wide, form="loop")
    ours = ssd(x, delta, A, B, C, D, h0, chunk=4)
    assert_same(ours, (y.unflatten(2, (-1, width)), last.unflatten(1, (-1, width))))


def test_strong_decay_makes_no_infinity():
    x, delta, A, B, C, D, h0 = dual_inputs(9, dtype=torch.float32)
    strong = [x, delta + 400, A - 1, B, C, D, h0]  # e⁴⁰⁰ overflows in float32
    leaves = [t.detach().requires_grad_() for t in strong]
    results = with_gradients(lambda *i: ssd(*i, chunk=4), leaves)
    assert all(t.isfinite().all() for t in results)


def test_the_forward_keeps_inputs_and_states_alone():
    inputs = dual_inputs(13, groups=1)
    excepted, h0 = storages(inputs), inputs[-1]
    saved = SavedTensors(lambda: excepted)
    with saved:
        y, last = ssd(*inputs[:5], None, h0, chunk=4)
        y.sum().backward()
    assert saved.peak == 5 * h0.nbytes  # before 4 chunks, and behind the last
    assert last.untyped_storage().nbytes() == h0.nbytes  # a cache that keeps it keeps no others


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_computed_in_float32(dtype):
    x, delta, A, B, C, D, h0 = (t.detach().to(dtype) for t in dual_inputs(20))
    y, last = ssd(x, delta, A, B, C, None, h0, chunk=8)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    exact = [t.double() for t in (x, delta, A, B, C, 0 * D, h0)]
    expected, after = dual(*exact)
    near = 1e-6 if dtype is torch.float32 else 4e-3
    assert (y - expected).norm() < near * expected.norm()
    assert (last - after).norm() < 1e-6 * after.norm()


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_steps_are_the_recurrence_and_keep_the_state_before(groups):
    x, delta, A, B, C, D, h = dual_inputs(6, groups=groups)
    expected, last = dual(x, delta, A, B, C, D, h)
    before, found, first = h.clone(), [], h
    for t in range(6):
        y, h = ssd_step(x[:, t], delta[:, t], A, B[:, t], C[:, t], D, h)
        found.append(y)
    assert_same([torch.stack(found, 1), h, first], [expected, last, before])


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_shape_that_does_not_fit_is_named(name):
    inputs = dict(zip(NAMES, dual_inputs(4), strict=True))
    inputs[name] = inputs[name][..., :-1]
    said = "C" if name == "B" else name  # B says how large the state is
    with pytest.raises(ValueError, match=f"{said} has the shape"):
        ssd(**inputs)


def test_what_cannot_be_scanned():
    x, delta, A, B, C, *_ = dual_inputs(4)
    with pytest.raises(ValueError, match=r"chunk is 0"):
        ssd(x, delta, A, B, C, chunk=0)
    with pytest.raises(ValueError, match=r"4 heads do not divide into 3 groups"):
        ssd(x, delta, A, B.repeat(1, 1, 2, 1)[:, :, :3], C)
    with pytest.raises(ValueError, match=r"need \(B, L, H, P\) and \(B, L, G, N\)"):
        ssd(x[0], delta, A, B, C)
